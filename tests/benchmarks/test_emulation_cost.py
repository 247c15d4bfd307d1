"""What an emulated answer costs: seconds on one core, and the memory of all processes that it takes.

    scripts/test.sh tests/benchmarks/test_emulation_cost.py -s --benchmark-only --benchmark-json emulation.json

Each case is the whole command `zerostage emulate`, from its start to its end, on one core. Memory is the proportional
set size (PSS) of the command and all processes below it, sampled ten times a second.
"""

import contextlib
import os
import subprocess
import sys
import time

import psutil
import pytest

from bench.store import read_records

CASES = {
    "llama-2-7b, N=64, all stages": (["--model", "llama-2-7b", "--gpus", "64"], 60.0),
    "llama-3.1-70b, N=1024, z3": (["--model", "llama-3.1-70b", "--gpus", "1024", "--strategy", "z3"], 120.0),
    "mixtral-8x7b, N=64, z3": (["--model", "mixtral-8x7b", "--gpus", "64", "--strategy", "z3"], 120.0),
}
HOST_BYTES = 1.5 * 2**30


def pss(process):
    """Return the bytes that a process and all below it hold; memory that several share is counted once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += each.memory_full_info().pss
    return total


def emulate(options, results):
    """Run the command on one core; return its seconds, the most bytes that it held, and its rows."""
    core = min(os.sched_getaffinity(0))
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "bench", "emulate", *options, "--results", str(results)],
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ) as command:
        watched, most = psutil.Process(command.pid), 0
        while command.poll() is None:
            most = max(most, pss(watched))
            time.sleep(0.1)
        assert command.returncode == 0
    return time.monotonic() - began, most, read_records(results / "emulate")


@pytest.mark.parametrize("case", CASES)
def test_an_answer_comes_fast_and_takes_little_memory(benchmark, tmp_path, case):
    options, limit_s = CASES[case]
    seconds, most, rows = benchmark.pedantic(emulate, args=(options, tmp_path), rounds=1)
    cells = {row.label: row.launch.wall_time_s for row in rows}
    benchmark.extra_info |= {"wall_s": seconds, "pss_bytes": most, "cells_s": cells}
    print(f"\n{case}: {seconds:.1f} s, {most / 2**30:.2f} GiB; by cell: {cells}")
    assert all(row.status == "completed" for row in rows)
    assert seconds < limit_s
    assert most < HOST_BYTES
