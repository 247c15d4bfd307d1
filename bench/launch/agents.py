"""Warm ranks: one `deepspeed` launch starts agents that import once; every job is a fresh child of each.

The agents (bench.worker.agent) connect to this process over loopback. They are told which job to run, and when to kill
it; they tell whether they may fork, the child's process id and its exit status. Results go through files. A cell of n
ranks runs in children of the first n agents.
"""

import contextlib
import select
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.channel import RUNNER, Channel
from bench.errors import AgentsError, UnsafeForkError
from bench.hang import RankStack
from bench.launch.deepspeed import Exit, create, free_port, started
from bench.launch.witness import kills_between, oom_kills, rank_stacks
from bench.messages import first_exception, rank_exit
from bench.shared_memory import remove_buffers

START_TIMEOUT_S = 600.0
_GREETING_S = 5.0
# What the peers of a rank that failed have for their own last words.
_GRACE_S = 2.0
# A killed child is gone in milliseconds, gigabytes of it in a second or two; the launcher looks once a second.
_END_S = 20.0


@dataclass
class Agents:
    """The warm ranks of one launch.

    ``start_s``: how long they took to start, ``None`` once a row has it. ``port``: of the job that runs or ran last.
    """

    argv: list[str]
    channels: list[Channel]
    launcher: subprocess.Popen[bytes]
    log: Path
    start_s: float | None
    port: int | None = None
    lost: bool = False

    def are_idle(self) -> bool:
        """Whether they wait for a job. If not, one has gone or does not answer, and others have to be started."""
        return not self.lost and self.launcher.poll() is None and not select.select(self.channels, [], [], 0)[0]


@dataclass
class _Job:
    """What is known of a job under way, by rank: its process, its exit status."""

    processes: dict[int, psutil.Process] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    first_failure: tuple[float, int] | None = None

    def note(self, rank: int, message: dict[str, Any]) -> None:
        if "pid" in message:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.processes[rank] = psutil.Process(message["pid"])
        else:
            self.statuses[rank] = message["status"]
            if message["status"] and self.first_failure is None:
                self.first_failure = time.monotonic(), message["status"]


@contextlib.contextmanager
def agents(
    argv: list[str],
    env: dict[str, str],
    world_size: int,
    *,
    run: Path,
    log: Path,
    on_tick: Callable[[], None] = lambda: None,
) -> Iterator[Agents]:
    """Start ``argv``, a launch of ``world_size`` agents, and wait until all are warm; at the end none is left.

    Raises:
        UnsafeForkError: one says that a forked child would not be as good as a fresh process.
        AgentsError: they did not come up.
        StoreError: ``log`` cannot be written.
    """
    began, token = time.monotonic(), uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=world_size))
        env = env | {RUNNER: f"127.0.0.1:{listener.getsockname()[1]}:{token}"}
        launcher, _ = stack.enter_context(started(argv, env, run=run, log=log))
        found: dict[int, Channel] = {}
        warm: set[int] = set()
        while len(warm) < world_size:
            on_tick()
            if launcher.poll() is not None:
                raise AgentsError(f"the launch of warm ranks ended ({_cause(launcher, log)}); see logs/{log.name}")
            if time.monotonic() - began > START_TIMEOUT_S:
                raise AgentsError(f"warm ranks were not ready after {START_TIMEOUT_S:g} s; see logs/{log.name}")
            if select.select([listener], [], [], 0.05)[0]:
                channel, messages = _greeting(listener)
                stack.callback(channel.close)
                if messages and messages[0].get("token") == token:
                    rank = messages[0]["rank"]
                    found[rank] = channel
                    warm |= _warm(rank, messages[1:])
            importing = [channel for rank, channel in found.items() if rank not in warm]
            for channel in select.select(importing, [], [], 0.05)[0]:
                rank = next(rank for rank, each in found.items() if each is channel)
                warm |= _warm(rank, _received(channel, launcher))
        channels = [found[rank] for rank in range(world_size)]
        ready = Agents(argv, channels, launcher, log, time.monotonic() - began)
        try:
            yield ready
        finally:
            stack.close()
            if ready.port is not None:  # of a job that was broken off: its ranks are gone only now
                remove_buffers(ready.port)


def _received(channel: Channel, launcher: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Return what an agent says; when it has gone, give its launcher the time to see that and end."""
    try:
        return channel.receive()
    except EOFError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_END_S)
        return []


def _warm(rank: int, messages: list[dict[str, Any]]) -> set[int]:
    """Return the rank whose agent says that it is warm and may fork."""
    for message in messages:
        if message["why_not_fork"]:
            raise UnsafeForkError(message["why_not_fork"])
        return {rank}
    return set()


def _cause(launcher: subprocess.Popen[bytes], log: Path) -> str:
    """Return in words why the launch of agents has ended."""
    text = log.read_text(errors="replace")
    if raised := first_exception(text):
        return f"{raised.type}: {raised.message}"[:300]
    status = rank_exit(text)
    return f"exit status {launcher.returncode if status is None else status}"


def _greeting(listener: socket.socket) -> tuple[Channel, list[dict[str, Any]]]:
    """Accept a connection and return its first messages; what does not say at once what it is, is no agent."""
    connection, _ = listener.accept()
    channel, deadline = Channel(connection), time.monotonic() + _GREETING_S
    messages: list[dict[str, Any]] = []
    with contextlib.suppress(EOFError, ValueError, RecursionError):
        while not messages and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            messages = channel.receive()
    connection.settimeout(None)
    return channel, messages if all(isinstance(message, dict) for message in messages) else []


def fork(
    agents: Agents,
    module: str,
    argument: Path,
    world_size: int,
    *,
    log: Path,
    timeout_s: float,
    variables: dict[str, str],
    work: Path | None = None,
    on_tick: Callable[[], None] = lambda: None,
) -> Exit:
    """Run ``module.main(argument)`` in a child of each of the first ``world_size`` agents; see all of them end.

    ``work`` and ``on_tick`` as in `bench.launch.deepspeed.launch`. When one rank fails, its peers have 2 s for their
    last words. ``agents.lost`` is set when an agent goes, which ends its launch, or does not answer for 20 s: no
    other job can run in them. An exception in ``on_tick`` or in this process leaves the ranks to the end of `agents`.
    """
    agents.port = port = free_port()
    create(log).close()
    kills, began = oom_kills(), time.monotonic()
    variables = variables | {"WORLD_SIZE": str(world_size), "LOCAL_SIZE": str(world_size), "MASTER_PORT": str(port)}
    request = {"module": module, "argument": str(argument), "log": str(log), "variables": variables}
    job, stacks, timed_out = _Job(), [], False
    ranks = dict(enumerate(agents.channels[:world_size]))
    status = None
    try:
        for channel in ranks.values():
            channel.send(request)
        while not _wait(ranks, job, on_tick):
            if time.monotonic() - began > timeout_s:
                timed_out = True
                stacks = _where(job, work)
                _end(ranks, job)
                break
            if job.first_failure is not None and time.monotonic() - job.first_failure[0] > _GRACE_S:
                _end(ranks, job)
                break
        status = job.first_failure[1] if job.first_failure else 0
    except (EOFError, TimeoutError) as error:
        agents.lost = True
        failed = job.first_failure[1] if job.first_failure else 1
        # The launcher knows how an agent ended; what its rank's peers say is only the consequence.
        status = _how_lost(agents, log, isinstance(error, EOFError)) or failed
    remove_buffers(port)
    return Exit(None if timed_out else status, time.monotonic() - began, stacks, kills_between(kills, oom_kills()))


def _wait(ranks: dict[int, Channel], job: _Job, on_tick: Callable[[], None]) -> bool:
    """Wait a moment for messages; return whether every rank has ended."""
    on_tick()
    for channel in select.select(list(ranks.values()), [], [], 0.1)[0]:
        rank = next(rank for rank, each in ranks.items() if each is channel)
        for message in channel.receive():
            job.note(rank, message)
    return len(job.statuses) == len(ranks)


def _end(ranks: dict[int, Channel], job: _Job) -> None:
    """Kill the ranks that are left, and wait until they are gone.

    Raises:
        EOFError: an agent has gone.
        TimeoutError: one does not answer.
    """
    for rank, channel in ranks.items():
        if rank not in job.statuses:
            channel.send({"kill": True})
    deadline = time.monotonic() + _END_S
    while not _wait(ranks, job, lambda: None):
        if time.monotonic() > deadline:
            raise TimeoutError


def _where(job: _Job, work: Path | None) -> list[RankStack]:
    if work is None:
        return []
    living = {rank: process for rank, process in job.processes.items() if rank not in job.statuses}
    return rank_stacks(living, work)


def _how_lost(agents: Agents, log: Path, gone: bool) -> int | None:
    """Return the exit status of the agent that went, if its launcher saw it; say so in the log of the job."""
    status = None
    if gone:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agents.launcher.wait(_END_S)
        status = rank_exit(agents.log.read_text(errors="replace"))
    how = f"ended, with exit status {status}" if gone else f"did not answer for {_END_S:g} s"
    with log.open("a") as stream:
        stream.write(f"zerostage: the agent of a rank {how}\n")
    return status
