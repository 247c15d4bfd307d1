"""What became of a launch, in one word and a reason. Files decide; an exit status alone never means success."""

import json
import linecache
import signal
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, get_args

from bench import messages
from bench.hang import RankStack, judge_stacks, threads
from bench.record import Failure, Status

# What a rank says of itself that no time-out after it can change.
_SETTLED = ("oom", "unsupported", "config_error", "build_error")
# How a process ends that touches a tensor without memory; x86 raises the second for some registers.
_NO_MEMORY = ("SIGSEGV", "SIGBUS")


def _first_failure(work: Path) -> dict[str, Any] | None:
    """Return the earliest failure that any rank left, before those that only say that a peer has gone."""
    failures = []
    for path in work.glob("failure.rank*.json"):
        try:
            left = json.loads(path.read_text())
            _failure(left)
            if left["status"] in get_args(Status):
                failures.append(left | {"time": float(left["time"])})
        except (ValueError, TypeError, KeyError):  # the rank died while writing it, or another program wrote it
            continue
    return min(failures, key=lambda each: (messages.is_lost_peer(each["message"]), each["time"]), default=None)


def _failure(left: dict[str, Any]) -> Failure:
    """Return what the record keeps of a rank's file; raises ``ValueError`` or ``TypeError`` if it is not one."""
    return Failure(**{key: left[key] for key in Failure.model_fields if key in left})


def _signal_name(status: int) -> str | None:
    """Return the signal that ended a rank, if one did; ``status`` as the launcher passes it on."""
    if status == 137:  # as shells and containers write SIGKILL; above it, 130 is more often a plain exit
        return "SIGKILL"
    # The launcher passes on a rank's negative exit status as that number modulo 256.
    try:
        # 255 is far more often a plain exit(-1) than a rank ended by SIGHUP.
        return None if status == 255 else signal.Signals(256 - status if status > 128 else -status).name
    except ValueError:
        return None


def _logged_failure(log: str, world_size: int) -> tuple[messages.LoggedException | None, Failure | None]:
    """Return the first exception in the log, and as a failure if its rank is known."""
    raised = messages.first_exception(log)
    rank = 0 if world_size == 1 else raised.rank if raised else None
    if raised is None or rank is None:
        return raised, None
    size = messages.requested_bytes(raised.message)
    return raised, Failure(
        rank=rank, activity="see the log", type=raised.type, message=raised.message, traceback=[], requested_bytes=size
    )


def _watchdog(log: str) -> str | None:
    found = messages.watchdog(log)
    waits = [f"rank(s) {', '.join(map(str, ranks)) or '?'} waited in {op}" for op, ranks in found.items()]
    return f"{'; '.join(waits)}, until the NCCL watchdog gave up" if waits else None


def _out_of_time(
    stacks: Sequence[RankStack], timeout_s: float, world_size: int, first: dict[str, Any] | None, device: str
) -> tuple[Status, str]:
    if first and first["status"] in _SETTLED:
        status, reason = _spoken(first, None, lost=False, device=device)
        return status, f"{reason}; the ranks did not end and were killed at the time-out of {timeout_s:g} s"
    hung, words = judge_stacks(stacks, world_size, linecache.getline)
    late = f"not done after {timeout_s:g} s, killed"
    reason = f"{words}; {late}" if hung else f"{late}; {words}" if words else late
    if first:
        reason += f"; before that, rank {first['rank']}, {first['activity']}: {first['type']}"
    return "hang" if hung else "timeout", reason


def _spoken(first: dict[str, Any], ended_by: str | None, lost: bool, device: str) -> tuple[Status, str]:
    """Judge by what a rank left."""
    lines = first["message"].strip().splitlines() or [""]
    # A rank that is killed leaves no word; what its peers then say is only the consequence.
    cause = f"a rank was {ended_by}; then " if ended_by else "a rank ended without a word; then " if lost else ""
    status: Status = first["status"]
    if status == "oom" and device != "cpu" and messages.is_host_allocation(first["message"]):
        status = "host_oom"
    during = f", {first['phase']}" if first.get("phase") not in (None, "init") else ""
    return status, f"{cause}rank {first['rank']}, {first['activity']}{during}: {first['type']}: {lines[0]}"


def _content_read(log: str, signal_name: str) -> str:
    """Return the reason of an emulated rank that touched a tensor without memory, from the stack in its log."""
    dump = log[found:] if (found := log.find("Current thread 0x")) >= 0 else ""
    frames = next(iter(threads(dump)), [])
    reader = next((frame for frame in frames if not {"torch", "numpy"} & set(PurePath(frame.file).parts)), None)
    where = f"; {reader.function} at {PurePath(reader.file).name}:{reader.line}" if reader else ""
    return f"its code reads the content of a tensor outside torch's dispatcher ({signal_name}){where}; see the log"


def judge_launch(
    work: Path,
    exit_status: int | None,
    timeout_s: float,
    *,
    log: str = "",
    stacks: Sequence[RankStack] = (),
    oom_kills: str | None = None,
    world_size: int = 1,
    device: str = "cpu",
    emulated: bool = False,
) -> tuple[Status, str | None, Failure | None]:
    """Return status, reason and first failure of a launch whose ranks wrote into ``work``.

    ``exit_status`` is the launcher's, ``None`` when it was killed at its time-out; ``log`` the text of all ranks;
    ``stacks`` and ``oom_kills`` what bench.launch.witness saw. A rank that left a file is judged by it, one that
    did not by the log. The tensors of an ``emulated`` rank have no content, and who reads it is killed.
    """
    first = _first_failure(work)
    failure = _failure(first) if first else None
    if exit_status is None:
        return *_out_of_time(stacks, timeout_s, world_size, first, device), failure
    if exit_status == 0 and first is None and (work / "result.json").is_file():
        return "completed", None, None
    code = messages.rank_exit(log)
    name = _signal_name(exit_status if code is None or code >= 0 else code)
    lost = first is not None and messages.is_lost_peer(first["message"])
    # The launcher may see the peers of a killed rank end before it sees the rank; when it is killed itself, it is 0.
    # Another signal is another cause: the OOM killer sends no other.
    if oom_kills and (name == "SIGKILL" or (name is None and (lost or exit_status == 0))):
        return (
            "host_oom",
            f"a rank {'was killed by SIGKILL' if name else 'ended without a word'}, and {oom_kills}",
            failure,
        )
    if (first is None or lost or first["status"] == "hang") and (waited := _watchdog(log)):
        return "hang", waited, failure
    killer = ", without evidence of the kernel's OOM killer" if name == "SIGKILL" else ""
    ended_by = f"killed by {name}{killer}" if name else None
    if first is not None:
        return *_spoken(first, ended_by, lost, device), failure
    if emulated and name in _NO_MEMORY:
        return "unsupported", _content_read(log, name), None
    if exit_status == 0:
        return "silent_exit", "exit status 0, but rank 0 left no result", None
    raised, failure = _logged_failure(log, world_size)
    if raised is not None and not (ended_by and messages.is_lost_peer(raised.message)):
        return messages.status_of(raised.type, raised.message), f"{raised.type}: {raised.message}", failure
    return "crashed", f"a rank ended without a word: {ended_by or f'exit status {exit_status}'}; see the log", None


def judge_log(log: str) -> tuple[Status | None, str | None]:
    """Return status and reason of a run of which only its log is left; ``None`` where the log does not say."""
    waited = _watchdog(log)
    if messages.ended_well(log) and not waited:
        return "completed", None
    raised = messages.first_exception(log)
    status = messages.status_of(raised.type, raised.message) if raised else None
    said = f"{raised.type}: {raised.message}" if raised else None
    if raised and status == "oom" and messages.is_host_allocation(raised.message):
        status = "host_oom"
    if status in (*_SETTLED, "host_oom"):
        return status, said
    code = messages.rank_exit(log)
    name = _signal_name(code) if code is not None else None
    killed = messages.oom_kill(log)
    if killed and name in (None, "SIGKILL"):
        return "host_oom", f"a rank was killed: {killed[:200]}"
    if waited:
        return "hang", waited
    if raised and not messages.is_lost_peer(raised.message):
        return status, said
    if name:
        evidence = ", without evidence of the kernel's OOM killer" if name == "SIGKILL" else ""
        return "crashed", f"a rank was killed by {name}{evidence}"
    if code:
        return "crashed", f"a rank ended with exit status {code}"
    return status, said
