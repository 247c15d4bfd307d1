"""Whatever a cell does to its rank, its agent or the machine's memory, it costs that cell alone."""

import pytest
from exact import exact
from forked import Ranks, planned

import bench.launch.agents
from bench.launch.processes import RUN_MARKER, marked

pytestmark = pytest.mark.ranks

CELL = planned(strategy="z2")


@pytest.fixture(scope="module")
def ranks():
    with Ranks([CELL]) as started:
        yield started


@pytest.fixture(scope="module")
def honest(ranks):
    return ranks.measure(CELL)


def processes(ranks):
    return {process.pid for process in marked(RUN_MARKER, str(ranks.path.resolve()))}


# fault, status, words that the reason must have, whether the agents survive it
CASES = [
    ("kills_itself", "crashed", "killed by SIGKILL, without evidence of the kernel's OOM killer", True),
    ("reads_where_nothing_is", "crashed", "killed by SIGSEGV", True),
    ("kills_its_agent", "crashed", "killed by SIGKILL, without evidence of the kernel's OOM killer", False),
    ("stops_its_agent", "crashed", "a rank ended without a word; then rank 0, counting pass", False),
    ("never_comes", "hang", "rank 0 waits in all_reduce", True),
    ("leaks_5_gib_and_leaves_a_process_behind", "completed", None, True),
    ("leaves_its_traces", None, None, True),
]


@pytest.mark.parametrize(("fault", "status", "words", "survives"), CASES)
def test_a_fault_costs_its_cell_alone(ranks, honest, fault, status, words, survives, monkeypatch):
    monkeypatch.setattr(bench.launch.agents, "_END_S", 5.0)
    before = processes(ranks)
    assert len(before) == 4  # two launchers, two agents: no rank
    broken = ranks.measure(CELL, fault, timeout_s=40.0 if status == "completed" else 12.0)
    if status is not None:
        assert broken.status == status, broken.reason
        assert (words or "") in (broken.reason or "")
    if survives:
        assert processes(ranks) == before
    after = ranks.measure(CELL)
    assert exact(after) == exact(honest)
    assert len(processes(ranks)) == 4
    assert (processes(ranks) == before) == survives
