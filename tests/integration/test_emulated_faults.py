"""An emulated rank that reads content which is not there gets a row that says who did, and costs no other row."""

import pytest
from forked import planned

pytestmark = pytest.mark.ranks

CELL = planned(strategy="z2", mode="emulated", world_size=4)


def test_who_reads_outside_the_dispatcher_is_named(ranks):
    broken = ranks.measure(CELL, "reads_a_tensor_outside_the_dispatcher")
    assert broken.status == "unsupported", broken.reason
    assert broken.reason.startswith("its code reads the content of a tensor outside torch's dispatcher (SIG")
    assert "; reads_a_tensor_outside_the_dispatcher at deadly_faults.py:" in broken.reason
    log = (ranks.path / broken.launch.log).read_text()
    assert log.startswith("Fatal Python error: ")
    assert "in counting_pass" in log or "in broken" in log
    after = ranks.measure(CELL)
    assert (after.status, after.validity) == ("completed", "valid"), after.reason


def test_another_signal_is_a_crash(ranks):
    broken = ranks.measure(CELL, "kills_itself")
    assert broken.status == "crashed"
    assert "killed by SIGKILL" in broken.reason
