"""Break a rank on purpose. Python imports this by itself when its folder is on PYTHONPATH; the product has no hook."""

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path


def _raise_in_rank_1(rank):
    if rank == 1:
        raise RuntimeError("injected: rank 1 gives up")


def _kill_rank_1(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _exit_0(rank):
    os._exit(0)


def _sleep(rank):
    time.sleep(3600)


def _sleep_in_rank_1(rank):
    if rank == 1:
        time.sleep(3600)


def _work_in_rank_1(rank):
    while rank == 1:
        sum(range(1000))


def _take_memory_in_rank_1(rank):
    taken = []
    while rank == 1:
        assert len(taken) < 64, "8 GiB, and the kernel does not mind"
        taken.append(b"x" * 2**27)


def _limit_memory(rank):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20,) * 2)


FAULTS = {
    "raise": _raise_in_rank_1,
    "kill": _kill_rank_1,
    "exit": _exit_0,
    "sleep": _sleep,
    "sleep in rank 1": _sleep_in_rank_1,
    "work in rank 1": _work_in_rank_1,
    "take memory in rank 1": _take_memory_in_rank_1,
    "oom": _limit_memory,
}

fault, rank = os.environ.get("ZEROSTAGE_TEST_FAULT"), os.environ.get("RANK")
if fault == "thread in the agent":
    if rank is not None and "bench.worker.agent" in sys.orig_argv:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
elif fault and rank is not None:
    from bench.worker.loop import Loop

    counting_pass = Loop.counting_pass

    def broken(self, *arguments):
        FAULTS[fault](int(rank))
        return counting_pass(self, *arguments)

    Loop.counting_pass = broken
