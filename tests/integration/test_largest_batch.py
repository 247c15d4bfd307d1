"""Real ranks: the largest micro batch within a budget, measured and emulated, is where the next one does not fit."""

import pytest
from conftest import zerostage

from bench.store import read_records

pytestmark = pytest.mark.ranks

SCENARIO = """
matrix:
  model: llama-tiny
  strategy: z1
  train_micro_batch_size_per_gpu: max
  seq_length: 64
  mode: [measured, emulated]
largest_batch: {memory_gib: 0.009765625}
zero_optimization: {reduce_bucket_size: 100_000}
warmup_steps: 1
steps: 2
"""
BUDGET = 10 * 2**20


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("largest")
    (folder / "largest.yaml").write_text(SCENARIO)
    done = zerostage("run", folder / "largest.yaml", "--results", folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def rows(run):
    records = read_records(run[0] / "runs" / "largest")
    return {record.provenance: record for record in records}


@pytest.mark.parametrize("provenance", ["measured", "emulated"])
def test_the_size_found_fits_and_the_next_was_tried_and_does_not(rows, provenance):
    record = rows[provenance]
    assert record.status == "completed", record.reason
    assert record.validity == "valid"
    found = record.cell.train_micro_batch_size_per_gpu
    tried = {each.train_micro_batch_size_per_gpu: each for each in record.batch_search if each.how == provenance}
    assert tried[found].fits
    assert not tried[found + 1].fits
    assert record.memory.peak_allocated_bytes <= BUDGET < tried[found + 1].peak_bytes
    assert tried[found + 1].phase == "backward: loss"
    # The formulas knew it.
    proposed = [each for each in record.batch_search if each.how == "predicted"]
    assert [(each.train_micro_batch_size_per_gpu, each.fits) for each in proposed] == [
        (found, True),
        (found + 1, False),
    ]
    assert len(record.batch_search) == (5 if provenance == "measured" else 4)


def test_measured_and_emulated_find_the_same(rows):
    measured, emulated = rows["measured"], rows["emulated"]
    assert measured.cell.train_micro_batch_size_per_gpu == emulated.cell.train_micro_batch_size_per_gpu > 1
    assert measured.memory.peak_allocated_bytes == emulated.memory.peak_allocated_bytes
    assert measured.parity.reference is not None


def test_nothing_but_rows_is_left_and_nothing_is_searched_twice(run):
    folder, said = run
    runs = folder / "runs" / "largest"
    assert not (runs / "searches").exists()
    assert not list(runs.glob("*/*-mbs*"))
    assert "does not fit: " in said
    assert "not the same global batch" in said
    again = zerostage("run", folder / "largest.yaml", "--results", folder / "runs")
    assert "2 of 2 rows are there already" in again.stdout
