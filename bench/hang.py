"""Where the ranks of a launch stood when its time was up: a hang, or only slow. Pure: stack dumps in, words out.

Each rank writes its Python stacks (faulthandler) twice, a few seconds apart. A rank whose stack is the same both
times, and that used no CPU in between, stands still.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

# A starved machine gives a working rank little; one that waits uses nothing.
IDLE_CPU_SHARE = 0.02
_NO_STACK, _ENDED = "left no stack", "had ended before"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_COMM_FILES = ("torch/distributed/distributed_c10d.py", "deepspeed/comm/torch.py")
_COLLECTIVES = re.compile(
    r"^(?:monitored_)?barrier$|^(?:inference_)?all_reduce|^_?all_gather|^_?reduce_scatter|^all_to_all|^broadcast"
    r"|^reduce$|^gather|^scatter|^send|^recv|^i?send$|^i?recv$|^init_process_group$|^new_group$|^destroy_process_group$"
)
# torch DDP calls its collectives from C++; these are the Python functions around them.
_DDP = {"_verify_param_shape_across_processes": "all_gather", "_sync_module_states": "broadcast"}
_PHASES = {"forward": "forward", "backward": "backward", "step": "step"} | dict.fromkeys(
    ("__call__", "_call_impl", "_wrapped_call_impl"), "forward"
)


@dataclass(frozen=True)
class Frame:
    """One Python frame of a dump."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class RankStack:
    """The two dumps of one rank, and the CPU seconds per second that it used between them."""

    rank: int
    first: str
    second: str
    cpu_share: float


@dataclass(frozen=True)
class Place:
    """Where a rank stood: ``op`` if inside a collective; ``at`` in words; ``still`` if it had not moved."""

    op: str | None
    at: str
    phase: str | None
    still: bool
    idle: bool


def threads(dump: str) -> list[list[Frame]]:
    """Return the Python threads of one faulthandler dump, each from its innermost frame outwards."""
    found: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            found.append([])
        elif found and (frame := _FRAME.match(line)):
            found[-1].append(Frame(frame[1], int(frame[2]), frame[3]))
    return [frames for frames in found if frames]


def phase(functions: Sequence[str]) -> str | None:
    """Return the phase of the step that a stack is in; ``functions`` from the outermost frame inwards.

    It is what ``train_step`` calls, through whatever wrappers: ``forward``, ``backward`` or ``step``.
    """
    if "train_step" not in functions:
        return None
    inside = functions[functions.index("train_step") + 1 :]
    return next((_PHASES[name] for name in inside if name in _PHASES), None)


def _is_worker(frames: list[Frame]) -> bool:
    return any(frame.file.endswith("bench/worker/main.py") for frame in frames)


def _collective(frames: list[Frame], source: Callable[[str, int], str], idle: bool) -> str | None:
    """Return the operation that the thread waits in; the name that its caller used."""
    named = [f.function for f in frames if f.file.endswith(_COMM_FILES) and _COLLECTIVES.search(f.function)]
    if named:
        return named[-1]
    for frame in frames:
        if frame.function in _DDP:
            return _DDP[frame.function]
    inner = frames[0]
    if ("/deepspeed/" in inner.file or "/torch/distributed/" in inner.file) and (
        inner.function == "wait" or ".wait(" in source(inner.file, inner.line)
    ):
        return "an asynchronous collective"
    # DDP waits for its all-reduces in C++ at the end of the backward; a backward that computes is not idle.
    ddp = any(frame.file.endswith("bench/worker/ddp.py") for frame in frames)
    return "all_reduce" if idle and ddp and inner.function == "_engine_run_backward" else None


def place(stack: RankStack, source: Callable[[str, int], str]) -> Place:
    """Return where a rank stood. ``source`` gives the text of a line of a source file, or an empty string."""
    before, after = threads(stack.first), threads(stack.second)
    if not before or not after:
        return Place(None, _NO_STACK, None, still=False, idle=False)
    main = next((frames for frames in after if _is_worker(frames)), after[0])
    idle = stack.cpu_share < IDLE_CPU_SHARE
    # On CUDA the hooks of the backward, and the collectives in them, run in threads of autograd.
    waits = [(op, frames) for frames in (main, *after) if (op := _collective(frames, source, idle))]
    op, where = waits[0] if waits else (None, main)
    inner = where[0]
    code = source(inner.file, inner.line).strip() or inner.function
    return Place(
        op=op,
        at=f"{code} at {PurePath(inner.file).name}:{inner.line}",
        phase=phase([frame.function for frame in reversed(main)]),
        still=where in before,
        idle=idle,
    )


def _words(where: Place, ranks: list[int]) -> str:
    some = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    plural = "" if len(ranks) > 1 else "s"
    during = f" ({where.phase})" if where.phase else ""
    if where.op and where.still:
        return f"{some} wait{plural} in {where.op}{during}"
    if where.at in (_NO_STACK, _ENDED):
        return f"{some} {where.at}"
    verb = "stand" if where.still and where.idle else "work"
    return f"{some} {verb}{plural} in {where.op or where.at}{during}"


def judge_stacks(
    stacks: Sequence[RankStack], world_size: int, source: Callable[[str, int], str]
) -> tuple[bool, str | None]:
    """Return whether the ranks hang, and in words where each of them was; no words when nothing was dumped.

    They hang when a rank waits in a collective and every rank that does not has ended or stands still elsewhere; or
    when all wait in collectives and no data moves, that is, none uses the CPU. A rank that works elsewhere may still
    come: that is a launch too slow for its time.
    """
    if not stacks:
        return False, None
    places = {stack.rank: place(stack, source) for stack in stacks}
    ended = Place(None, _ENDED, None, still=True, idle=True)
    places |= {rank: ended for rank in range(world_size) if rank not in places}
    waiting = [each for each in places.values() if each.op and each.still]
    others = [each for each in places.values() if not (each.op and each.still)]
    stuck = all(each.still and each.idle for each in others or waiting)
    groups: dict[Place, list[int]] = {}
    for rank, each in sorted(places.items()):
        key = Place(each.op, "", each.phase, True, True) if each.op and each.still else each
        groups.setdefault(key, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: item[0].op is None)
    return bool(waiting) and stuck, "; ".join(_words(where, ranks) for where, ranks in ordered)
