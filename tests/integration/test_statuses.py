"""Statuses that need evidence from outside the ranks: a hang, the kernel's OOM killer."""

import shutil
import uuid
from pathlib import Path

import pytest
from conftest import zerostage

from bench.launch.processes import RUN_MARKER, marked
from bench.store import read_records

pytestmark = pytest.mark.ranks

CGROUP_BYTES = 4 * 2**30


def records(path):
    return {record.cell.strategy: record for record in read_records(path.parent / "runs" / path.stem)}


def run(path, **how):
    done = zerostage("run", path, "--results", path.parent / "runs", **how)
    assert marked(RUN_MARKER, str((path.parent / "runs" / path.stem).resolve())) == []
    return done


def out_of_time(scenario_file, fault):
    """Return the record of a launch that was killed after rank 1 had come to ``fault`` and rank 0 to wait for it."""
    for timeout_s in (20, 300):  # the first is enough unless the machine is very busy
        path = scenario_file({"strategy": "z1", "world_size": 2}, name=f"after{timeout_s}", timeout_s=timeout_s)
        assert run(path, fault=fault).returncode == 1
        record = records(path)["z1"]
        assert record.launch.exit_status is None
        if "sitecustomize.py" in record.reason and "waits in" in record.reason:
            break
    return record


def test_a_rank_that_waits_for_one_that_sleeps_hangs_in_a_named_collective(scenario_file):
    record = out_of_time(scenario_file, "sleep in rank 1")
    assert record.status == "hang", record.reason
    assert record.reason.startswith("rank 0 waits in all_reduce (backward); rank 1 stands in time.sleep(3600) at site")
    assert record.reason.endswith(" s, killed")


@pytest.mark.slow
def test_a_rank_that_waits_for_one_that_works_is_only_out_of_time(scenario_file):
    record = out_of_time(scenario_file, "work in rank 1")
    assert record.status == "timeout", record.reason
    assert "s, killed; rank 0 waits in all_reduce (backward); rank 1 works in sum(range(1000)) at site" in record.reason


@pytest.fixture
def cgroup():
    """Return a memory cgroup with a limit, in which nothing runs yet."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    parent = Path("/sys/fs/cgroup", "memory" if v1 else "", (v1 or [lines[-1][2]])[0].lstrip("/"))
    group = parent / f"zerostage-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(CGROUP_BYTES))
    except OSError as error:
        shutil.rmtree(group, ignore_errors=True)
        pytest.skip(f"no memory cgroup can be made under {parent}: {error.strerror}")
    yield group
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_is_host_oom(scenario_file, cgroup):
    path = scenario_file({"strategy": "z1", "world_size": 2})
    into = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', cgroup]
    done = run(path, fault="take memory in rank 1", prefix=into)
    record = records(path)["z1"]
    assert record.status == "host_oom", record.reason
    # Whether the signal itself is seen depends on which of the ranks the launcher hears of first.
    assert record.reason.endswith(", and the kernel's OOM killer ended 1 process(es) of this cgroup meanwhile")
    assert done.returncode == 0  # an answer, as oom is
