"""What the ranks' exceptions and log lines mean. Pure text in, facts out; the shapes are those of public reports."""

import re
from dataclasses import dataclass

from bench.record import Status

_UNITS = {"byte": 1, "bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# torch's allocators on any device ("Tried to allocate 2.00 GiB", "you tried to allocate 64 bytes"), and numpy.
_REQUEST = re.compile(r"(?:[Tt]ried|Unable) to allocate ([\d.]+) ?(bytes?|B|[KMGT]iB)\b")
_OOM = re.compile(
    r"\bout of memory\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
    r"|CUBLAS_STATUS_ALLOC_FAILED|Cannot allocate memory|Unable to allocate [\d.]+ [KMGT]?i?B"
)
_HOST_ALLOCATOR = re.compile(r"DefaultCPUAllocator|Cannot allocate memory|Unable to allocate")
# torch.utils.cpp_extension, DeepSpeed's op builders.
_BUILD = re.compile(
    r"Error building extension|Error compiling objects for extension|Ninja is required|Unable to JIT load the"
    r"|CUDA_HOME does not exist|[Uu]nable to compile CUDA"
)
_BUILD_TYPES = ("CUDAMismatchException", "MissingCUDAException")
_COMPILER = re.compile(r"(?:^|: )(?:fatal )?error: |: error [A-Z]*\d+: |command not found|: not found$")
# What the other ranks say when one has gone: a consequence, never the cause.
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|Socket closed|remote process exited|"
    r"NCCL communicator was aborted|failed to recv, got 0 bytes"
)
# The back ends' own time-outs: gloo, the key-value store of the rendezvous, NCCL.
_WAITED = re.compile(
    r"Timed out waiting \d+ ?ms for \w+ operation|Timed out after \d+ seconds waiting for clients"
    r"|wait timeout after \d+ ?ms|Socket Timeout|Watchdog caught collective operation timeout"
)
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout: Work\w*\(SeqNum=\d+, OpType=(\w+)")
_RANK = re.compile(r"\bRank (\d{1,9})\]")
_SHAPE = re.compile(r"OpType=(\w+), NumelIn=(\d{1,15}), NumelOut=(\d{1,15}), Timeout\(ms\)=(\d{1,12})")
# The kernel's log, a container's, Slurm's.
_OOM_KILL = re.compile(r"[Oo]ut of memory: Kill|\boom-kill\b|\boom_kill\b|OOMKilled")
# c10d names its operation types; the record names the calls.
_OPS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
}
_PREFIX = re.compile(r"^\[rank(\d{1,9})\]: ?")
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_TERMINATE = re.compile(r"^\s+what\(\):\s+(.*)$")


def requested_bytes(message: str) -> int | None:
    """Return the size of the allocation that failed, as precisely as the message writes it (two decimals)."""
    found = _REQUEST.search(message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def is_host_allocation(message: str) -> bool:
    """Whether an allocation of the host's memory failed, not one of a GPU's."""
    return _HOST_ALLOCATOR.search(message) is not None


def is_lost_peer(message: str) -> bool:
    """Whether the exception says only that another rank has gone."""
    return _LOST_PEER.search(message) is not None


def status_of(kind: str, message: str) -> Status:
    """Return the status that an exception means for the cell, from the name of its type and its message."""
    name = kind.rsplit(".", 1)[-1]
    if name in ("OutOfMemoryError", "MemoryError") or _OOM.search(message):
        return "oom"
    if name in _BUILD_TYPES or _BUILD.search(message):
        return "build_error"
    if name in ("UnsupportedError", "NotEmulatedError"):
        return "unsupported"
    if name == "DeepSpeedConfigError":
        return "config_error"
    return "hang" if _WAITED.search(message) else "crashed"


@dataclass(frozen=True)
class LoggedException:
    """An exception that a rank printed. ``rank`` is ``None`` where the line does not say which."""

    rank: int | None
    type: str
    message: str


def first_exception(log: str) -> LoggedException | None:
    """Return the first exception in a log that all ranks write to, passing over what is only a consequence.

    Exceptions that Python ignores (in ``__del__``, as ``'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'``,
    deepspeedai/DeepSpeed#1846) come after the real one, and those of ranks that lost a peer too.
    """
    found = []
    inside: dict[int | None, bool] = {}  # by rank: between the heading of a traceback and its last line
    previous: dict[int | None, str] = {}
    for line in log.splitlines():
        prefix = _PREFIX.match(line)
        rank = int(prefix[1]) if prefix else None
        text = line[prefix.end() :] if prefix else line
        if text.startswith("Traceback (most recent call last)"):
            inside[rank] = not previous.get(rank, "").startswith("Exception ignored")
        elif terminated := _TERMINATE.match(text):
            found.append(LoggedException(rank, "C++ exception", terminated[1]))
        elif inside.get(rank) and text and not text[0].isspace() and (ended := _EXCEPTION.match(text)):
            inside[rank] = False
            found.append(LoggedException(rank, ended[1], ended[2] or ""))
        previous[rank] = text
    return next((each for each in found if not is_lost_peer(each.message)), found[0] if found else None)


def build_error(log: str) -> str | None:
    """Return the line of a build's log that says what went wrong: the compiler's first error, else what follows."""
    lines = [line.strip() for line in log.splitlines()]
    for wanted in (_COMPILER, re.compile(r"^FAILED: ")):
        for number, line in enumerate(lines):
            if wanted.search(line):
                command = lines[number + 1].split(" ")[0] if wanted is not _COMPILER and lines[number + 1 :] else ""
                return f"{line} ({command})" if command else line
    raised = first_exception(log)
    return f"{raised.type}: {raised.message}" if raised else None


def watchdog(log: str) -> dict[str, list[int]]:
    """Return the collectives that the NCCL watchdog gave up on, with the ranks that waited in them."""
    found: dict[str, set[int]] = {}
    for line in log.splitlines():
        if match := _WATCHDOG.search(line):
            ranks = found.setdefault(_OPS.get(match[1], match[1].lower()), set())
            ranks.update(map(int, _RANK.findall(line[: match.start()])))
    return {op: sorted(ranks) for op, ranks in found.items()}


def watchdog_shapes(log: str) -> dict[str, int]:
    """Return the time-out of the collective that the watchdog gave up on first, and the size of its group.

    An all-gather or reduce-scatter of flat tensors shows its group: one side is the group's size times the other.
    """
    found = _SHAPE.search(log)
    if found is None:
        return {}
    few, many = sorted((int(found[2]), int(found[3])))
    sized = found[1] in ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE") and few and many % few == 0
    return {"watchdog_timeout_ms": int(found[4])} | ({"collective_group_size": many // few} if sized else {})


def oom_kill(log: str) -> str | None:
    """Return the line in which the kernel, a container or Slurm says that it killed for want of memory."""
    found = _OOM_KILL.search(log)
    return log[log.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip() if found else None


def ended_well(log: str) -> bool:
    """Whether DeepSpeed's launcher saw ranks end, and none of them with an error."""
    return rank_exit(log) is None and re.search(r"Process \d+ exits successfully", log) is not None


def rank_exit(log: str) -> int | None:
    """Return the exit status of the rank that DeepSpeed's launcher saw end first; negative: its signal."""
    found = re.search(r"exits with return code = (-?\d{1,9})", log)
    return int(found[1]) if found else None


def allocator_flushes(log: str) -> int:
    """Return how often CUDA's caching allocator had to give everything back, as stage 3 warns (rank 0)."""
    return sum(map(int, re.findall(r"(\d{1,9}) pytorch allocator cache flushes since last step", log)))


def trace_invalidations(log: str) -> int:
    """Return how often stage 3 threw its recorded module order away (rank 0)."""
    return len(re.findall(r"Invalidate trace cache @ step \d+", log))
