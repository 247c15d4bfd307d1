"""The ZeRO paper's table 1 from emulated ranks: 7.5B parameters on 64 ranks, to the byte, and the script's tables."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import zerostage

from bench.store import read_records

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]
PSI, N = 7_521_140_736, 64
SHARE = PSI // N  # no remainder, in the whole model or in one tensor: nothing is padded
COUNTER = 4  # Adam's, one per flat tensor
EMBEDDING = 50257 * 3072  # rank 0's part of stages 1 and 2 lies within it
BUCKET = 2 * 500_000_000  # DeepSpeed's default


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    results = tmp_path_factory.mktemp("paper")
    scenario = ROOT / "scenarios" / "zero-paper.yaml"
    done = zerostage("run", scenario, "--results", results, "--only", "gpt-7.5b.json/*/w64n8/*")
    assert done.returncode == 0, done.stdout + done.stderr
    return results / "zero-paper"


@pytest.fixture(scope="module")
def memory(run):
    records = read_records(run)
    assert [record.num_params for record in records] == [PSI] * 3
    return {record.cell.strategy: record.memory.ranks[0] for record in records}


def at(memory, strategy, point):
    return next(each.bytes for each in memory[strategy].points if each.point == point)


@pytest.mark.parametrize(
    ("strategy", "parameters", "gradients"),
    [("z1", 2 * PSI, 2 * EMBEDDING), ("z2", 2 * PSI, 2 * EMBEDDING), ("z3", 2 * SHARE, 2 * SHARE)],
)
def test_states_after_backward_are_the_papers_but_for_whole_tensors_of_gradients(
    memory, strategy, parameters, gradients
):
    held = at(memory, strategy, "backward")
    assert held["parameters"] == parameters
    assert held["optimizer_states"] == 12 * SHARE + COUNTER
    assert held["gradients"] == gradients


def test_stage_1_holds_the_papers_states_at_its_peak(memory):
    held = at(memory, "z1", "peak")
    states = held["parameters"] + held["gradients"] + held["optimizer_states"]
    assert states == 4 * PSI + 12 * SHARE + COUNTER
    assert held["zero_buckets"] == BUCKET


@pytest.mark.parametrize("strategy", ["z1", "z2", "z3"])
def test_the_step_adds_as_many_temporaries_as_there_are_states(memory, strategy):
    held = at(memory, strategy, "step")
    assert 12 * SHARE <= held["step_temporaries"] <= 12 * SHARE + 64  # and a few norms
    assert held["optimizer_states"] == 12 * SHARE + COUNTER


def test_between_steps_stages_1_and_2_have_no_gradients_and_stage_3_its_bucket_too(memory):
    for strategy in ("z1", "z2"):
        assert memory[strategy].steady_bytes == pytest.approx(2 * PSI + 12 * SHARE, abs=64)
    persisted = at(memory, "z3", "backward")["persisted_parameters"]
    assert memory["z3"].steady_bytes == pytest.approx(16 * SHARE + BUCKET + persisted, abs=64)
    assert persisted == 2 * 65 * 13 * 3072 + 2 * 2 * 3072  # biases and norms, at most 1e5 elements each


def test_the_script_splits_every_difference_to_the_byte(run):
    script = [sys.executable, ROOT / "scripts" / "paper_table.py", run]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "over 3 cells" in done.stdout
    assert "| 3 | 64 | 1.88 | 1.875 | +0.005 | 0 | 0 | +0.000 | 1.880 |" in done.stdout
