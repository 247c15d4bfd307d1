import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked import Ranks, planned

FAULTS = Path(__file__).parents[1] / "data" / "faults"


def zerostage(*arguments, fault=None, prefix=(), **variables):
    """Run the command line as a user does, after ``prefix``; return the finished process, its text captured."""
    env = dict(os.environ) | variables
    if fault:
        path = os.pathsep.join(filter(None, [str(FAULTS), os.environ.get("PYTHONPATH")]))
        env |= {"PYTHONPATH": path, "ZEROSTAGE_TEST_FAULT": fault}
    argv = [*map(str, prefix), sys.executable, "-m", "bench", *map(str, arguments)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=1700)


@pytest.fixture
def scenario_file(tmp_path):
    """Return a function that writes a scenario of tiny cells and returns its path."""

    def write(matrix, name="cells", **settings):
        path = tmp_path / f"{name}.yaml"
        axes = {"model": "llama-tiny", "seq_length": 32} | matrix
        path.write_text(yaml.safe_dump({"warmup_steps": 1, "steps": 2, "matrix": axes} | settings))
        return path

    return write


@pytest.fixture(scope="session")
def ranks():
    """Four warm ranks, started once for all tests that measure cells and break no agent."""
    with Ranks([planned(strategy="z0", world_size=4)]) as started:
        yield started
