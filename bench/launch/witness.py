"""What only a look at the living machine can say of a launch: the OOM killer's counters, where the ranks stand."""

import contextlib
import re
import signal
import time
from pathlib import Path

import psutil

from bench.hang import RankStack
from bench.launch.processes import LAUNCH_MARKER, marked

# Long enough that a step which goes on is seen to go on.
PAUSE_S = 3.0
_WRITE_S = 1.0
_CGROUPS = Path("/sys/fs/cgroup")


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _cgroup_files(cgroups: Path, membership: str) -> list[Path]:
    """Return where the counter may be, given the text of /proc/self/cgroup: cgroup v1 first, then v2.

    In a container the path is often that of the host, and the container's own group is mounted as the root.
    """
    found = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found += [cgroups / "memory" / path.lstrip("/") / "memory.oom_control"]
            found += [cgroups / "memory" / "memory.oom_control"]
        elif not controllers:
            found += [cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"]
            found += [cgroups / "unified" / path.lstrip("/") / "memory.events"]
    return found


def oom_kills(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> tuple[str, int] | None:
    """Return how many processes the kernel has killed for lack of memory, and where: a cgroup or the machine.

    The cgroup is this process's, in which the ranks are too; a kill elsewhere on the machine is not in its count.
    """
    with contextlib.suppress(OSError, ValueError):
        for file in _cgroup_files(cgroups, (proc / "self" / "cgroup").read_text()):
            if (count := _count(file)) is not None:
                return "cgroup", count
    count = _count(proc / "vmstat")
    return None if count is None else ("machine", count)


def kills_between(before: tuple[str, int] | None, after: tuple[str, int] | None) -> str | None:
    """Return in words what was killed between two readings; ``None``: nothing, or nothing is known."""
    if before is None or after is None or before[0] != after[0] or after[1] <= before[1]:
        return None
    return f"the kernel's OOM killer ended {after[1] - before[1]} process(es) of this {after[0]} meanwhile"


def ranks_of(launch_id: str) -> dict[int, psutil.Process]:
    """Return the process of each rank of a launch: the oldest one, as what a rank forks looks like it."""
    found: dict[int, psutil.Process] = {}
    for process in sorted(marked(LAUNCH_MARKER, launch_id), key=lambda process: (process.create_time(), process.pid)):
        with contextlib.suppress(psutil.Error, OSError, ValueError, KeyError):
            command = process.cmdline()  # the launchers name the module too, after --module
            if command[command.index("bench.worker.main") - 1] == "-m":
                found.setdefault(int(process.environ()["RANK"]), process)
    return found


def _catches_dump_signal(process: psutil.Process) -> bool:
    """Whether the process has its handler by now; without one, the signal would end it."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return bool(caught and int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def _dump(processes: dict[int, psutil.Process], work: Path) -> dict[int, tuple[str, float]]:
    """Return the text that each rank's dump file now holds, and the rank's CPU seconds just before."""
    used = {}
    for rank, process in processes.items():
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            used[rank] = times.user + times.system
            if _catches_dump_signal(process):
                process.send_signal(signal.SIGUSR1)
    time.sleep(_WRITE_S)
    found = {}
    for rank, seconds in used.items():
        file = dump_file(work, rank)
        found[rank] = (file.read_text(errors="replace") if file.exists() else "", seconds)
    return found


def dump_file(work: Path, rank: int) -> Path:
    """Return where a rank writes its stacks on SIGUSR1 (bench.worker.main opens it)."""
    return work / f"stacks.rank{rank}.txt"


def rank_stacks(processes: dict[int, psutil.Process], work: Path) -> list[RankStack]:
    """Let every living rank write its stacks twice; takes about 5 s. ``processes`` by rank."""
    if not processes:
        return []
    started = time.monotonic()
    first = _dump(processes, work)
    time.sleep(PAUSE_S)
    elapsed = time.monotonic() - started
    second = _dump(processes, work)
    return [
        RankStack(
            rank,
            first=text,
            second=second[rank][0][len(text) :],
            cpu_share=(second[rank][1] - used) / elapsed,
        )
        for rank, (text, used) in sorted(first.items())
        if rank in second
    ]
