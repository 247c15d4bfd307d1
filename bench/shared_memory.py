"""What DeepSpeed's CPU collective leaves in shared memory: 66 MiB per rank and launch, until the machine is full.

Its C++ op (csrc/cpu/comm/shm.cpp, 0.19.8) makes ``deepspeed_allreduce_buffer_<uid>_<address>_<port>_<rank>`` in
/dev/shm when ranks of one machine meet, and unlinks nothing when they end. Every launch and every forked job has a port
of its own, by which its files are found.
"""

import contextlib
import os
import re
from pathlib import Path

_FOLDER = Path("/dev/shm")


def remove_buffers(port: int | str, folder: Path = _FOLDER) -> int:
    """Remove what the ranks of the launch with this master port have left; return how many files that was."""
    removed = 0
    for file in folder.glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"):
        with contextlib.suppress(OSError):
            file.unlink()
            removed += 1
    return removed


def mapped_ports(pid: int) -> set[str]:
    """Return the master ports of the launches whose buffers a process has mapped."""
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text()
        return set(re.findall(r"/deepspeed_allreduce_buffer_\d+_\S*?_(\d+)_\d+\b", maps))
    return set()
