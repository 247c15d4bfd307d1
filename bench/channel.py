"""JSON messages, one a line, between the runner and its agents."""

import json
import socket
from typing import Any

# The environment variable that tells an agent where its runner listens: host:port:token.
RUNNER = "ZEROSTAGE_RUNNER"


class Channel:
    """A connected stream socket; `select.select` takes it as it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 when it is closed."""
        return self.connection.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            EOFError: the other side has gone.
        """
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise EOFError from None

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that one read completes, none while the first is still on its way.

        Raises:
            EOFError: the other side has gone.
        """
        try:
            data = self.connection.recv(2**16)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket: the other side reads the end."""
        self.connection.close()
