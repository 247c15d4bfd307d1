"""Find and end the processes of a launch, wherever in the tree they ended up.

Every process that a launch starts inherits a marker in its environment. A marker is found again whatever
became of parents, sessions and process groups, and no process of anyone else carries it.
"""

import contextlib
import time

import psutil

from bench.shared_memory import mapped_ports, remove_buffers

RUN_MARKER = "ZEROSTAGE_RUN"  # the run folder: all launches of all runners that ever wrote there
LAUNCH_MARKER = "ZEROSTAGE_LAUNCH"  # one launch


def marked(name: str, value: str) -> list[psutil.Process]:
    """Return the living processes whose environment has ``name`` = ``value``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(name) == value:
                found.append(process)
    return found


def kill_marked(name: str, value: str) -> int:
    """Kill every process that carries the marker, and those they start meanwhile; return how many there were.

    Shared memory that they leave goes with them.

    Raises:
        RuntimeError: some are still alive after 10 s (stuck in the kernel).
    """
    killed: set[int] = set()
    ports: set[str] = set()
    deadline = time.monotonic() + 10
    while alive := marked(name, value):
        if time.monotonic() > deadline:
            raise RuntimeError(f"cannot end processes {[process.pid for process in alive]}")
        for process in alive:
            with contextlib.suppress(psutil.Error, OSError, KeyError):
                ports.add(process.environ()["MASTER_PORT"])
            ports |= mapped_ports(process.pid)  # a forked rank has another port than its environment said at first
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                killed.add(process.pid)
        psutil.wait_procs(alive, timeout=1)
    for port in ports:
        remove_buffers(port)
    return len(killed)
