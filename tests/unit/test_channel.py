import json
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bench.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Return a channel and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    with ours, theirs:
        yield Channel(ours), theirs


def test_messages_arrive_as_they_were_sent(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    sent: list[dict[str, Any]] = [{"pid": 7}, {"text": "two\nlines, a ü and \0"}, {}]
    for message in sent:
        Channel(peer).send(message)
    received: list[dict[str, Any]] = []
    while len(received) < len(sent):
        received += channel.receive()
    assert received == sent


def test_a_message_is_complete_when_its_line_is_however_it_is_cut(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    seen = []
    for part in [b'{"pi', b'd": 7', b'}\n{"status": 0}\n{"pid"', b": 8}", b"\n"]:
        peer.sendall(part)
        seen.append(channel.receive())
    assert seen == [[], [], [{"pid": 7}, {"status": 0}], [], [{"pid": 8}]]


def test_a_message_longer_than_one_read(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    long = {"text": "x" * 150_000}
    peer.sendall(json.dumps(long).encode() + b"\n")
    received: list[dict[str, Any]] = []
    while not received:
        received = channel.receive()
    assert received == [long]


def test_a_channel_can_be_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    assert select.select([channel], [], [], 0)[0] == []
    peer.sendall(b"{}\n")
    assert select.select([channel], [], [], 10)[0] == [channel]


def test_a_peer_that_has_gone(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    peer.sendall(b'{"status": 0}\n{"half')
    peer.close()
    assert channel.receive() == [{"status": 0}]
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(EOFError):
        channel.send({"kill": True})


def test_a_closed_channel_is_the_end_for_the_peer(ends: tuple[Channel, socket.socket]) -> None:
    channel, peer = ends
    channel.close()
    assert channel.fileno() == -1
    assert peer.recv(1) == b""
    for use in (channel.receive, lambda: channel.send({})):
        with pytest.raises(EOFError):
            use()


def test_silence_beyond_the_sockets_patience_is_the_end(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.connection.settimeout(0.05)
    with pytest.raises(EOFError):
        channel.receive()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r", b"", b"{", b"\xff\xfe\x00"])
def test_a_line_that_is_no_message_is_an_error(ends: tuple[Channel, socket.socket], line: bytes) -> None:
    channel, peer = ends
    peer.sendall(line + b"\n")
    with pytest.raises(ValueError, match=r"Expecting|decode"):
        channel.receive()
