"""What an emulated rank finds does not depend on the host: 4 GiB and a limit on memory, or 64 GiB and none."""

import json
import os
import resource
import subprocess
import sys

import pytest
from forked import planned

GIB = 2**30
DATA_BYTES = 3 * GIB // 2
# The worker, on a host that says it has so much memory.
WORKER = """
import sys
from pathlib import Path
import psutil
real, size = psutil.virtual_memory, int(sys.argv[2])
psutil.virtual_memory = lambda: real()._replace(total=size, available=size // 2, free=size // 2)
from bench.worker.main import leave, main
main(Path(sys.argv[1]))
leave(0)
"""


def limit():
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (4 * GIB, 4 * GIB))


def emulate(cell, folder, memory_bytes, preexec):
    """Emulate ``cell`` on a host of ``memory_bytes``; return result.json and the trace."""
    folder.mkdir()
    job = {
        "cell": cell.cell.model_dump(mode="json"),
        "model_config": cell.config,
        "device": "cpu",
        "trace": str(folder / "trace.json.gz"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    ended = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder / "job.json"), str(memory_bytes)],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        preexec_fn=preexec,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads((folder / "result.json").read_text()), (folder / "trace.json.gz").read_bytes()


@pytest.mark.parametrize("strategy", ["z1", pytest.param("z3", marks=pytest.mark.slow)])
def test_the_result_is_that_of_any_host(tmp_path, strategy):
    cell = planned(model="llama-2-7b", strategy=strategy, world_size=64, mode="emulated")
    small, small_trace = emulate(cell, tmp_path / "small", 4 * GIB, limit)
    large, large_trace = emulate(cell, tmp_path / "large", 64 * GIB, None)
    for result in (small, large):
        rank = result["ranks"][0]
        assert rank["memory"].pop("host_peak_rss_bytes") < DATA_BYTES
        assert rank["memory"]["peak_allocated_bytes"] > 4 * GIB
        result.pop("activity_s")
    assert small == large
    assert small_trace == large_trace
