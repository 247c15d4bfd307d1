"""Real DeepSpeed ranks on CPU: what the stages move and hold, to the byte, and what a user sees of it."""

import csv
import io
import json

import pytest
from conftest import zerostage

from bench.store import read_records
from bench.validity.traffic import measured_volumes, practice_volumes

pytestmark = pytest.mark.ranks

PSI = 315_968  # parameters of llama-tiny
BUCKET = 400_000  # above PSI, so that every reduction is one call
SCENARIO = f"""
matrix:
  model: llama-tiny
  strategy: [ddp, z0, z1, z2, z3]
  world_size: 2
  gradient_accumulation_steps: [1, 2]
  seq_length: 32
exclude:
  - {{strategy: [ddp, z0, z3], gradient_accumulation_steps: 2}}
zero_optimization:
  reduce_bucket_size: {BUCKET}
  stage3_prefetch_bucket_size: 100_000
  stage3_param_persistence_threshold: 0
warmup_steps: 1
steps: 3
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    (folder / "exact.yaml").write_text(SCENARIO)
    done = zerostage("run", folder / "exact.yaml", "--results", folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def rows(run):
    records = read_records(run[0] / "runs" / "exact")
    return {(record.cell.strategy, record.cell.gradient_accumulation_steps): record for record in records}


def traffic(record):
    """Elements by phase and operation, and the number of calls; control collectives left out."""
    found = {}
    for row in record.comm.collectives:
        if row.num_elements > 8:
            assert row.group_size == 2
            assert row.num_bytes == 2 * row.num_elements
            elements, calls = found.get((row.phase, row.op), (0, 0))
            found[row.phase, row.op] = elements + row.count * row.num_elements, calls + row.count
    return found


def test_every_cell_completes(rows):
    assert len(rows) == 7
    assert {record.status for record in rows.values()} == {"completed"}
    assert {record.num_params for record in rows.values()} == {PSI}


def test_stage_0_all_reduces_psi_once(rows):
    assert traffic(rows["z0", 1]) == {("backward", "all_reduce"): (PSI, 1)}
    assert rows["z0", 1].comm.comm_bytes_per_step == 2 * PSI
    assert rows["z0", 1].comm.comm_wire_bytes_per_step == 2 * PSI


@pytest.mark.parametrize("strategy", ["z1", "z2"])
def test_stages_1_and_2_all_reduce_psi_and_gather_psi(rows, strategy):
    assert traffic(rows[strategy, 1]) == {
        ("backward", "all_reduce"): (PSI, 1),
        ("step", "all_gather_into_tensor"): (PSI, 1),
    }
    assert rows[strategy, 1].comm.comm_bytes_per_step == 4 * PSI
    assert rows[strategy, 1].comm.comm_wire_bytes_per_step == 3 * PSI
    assert rows[strategy, 1].theory.comm_wire_bytes_per_step == 2 * PSI


def test_stage_3_gathers_psi_and_reduce_scatters_psi_once(rows):
    found = traffic(rows["z3", 1])
    assert found.pop(("backward", "reduce_scatter_tensor")) == (PSI, 1)
    assert {key: elements for key, (elements, _) in found.items()} == {("forward", "all_gather_into_tensor"): PSI}
    # Gloo's reduce-scatter costs an all-reduce: psi/2 gathered and psi reduced, 2 bytes each.
    assert rows["z3", 1].comm.comm_wire_bytes_per_step == 3 * PSI


def test_gradient_accumulation_costs_stage_2_and_not_stage_1(rows):
    assert traffic(rows["z1", 2]) == traffic(rows["z1", 1])
    assert traffic(rows["z2", 2]) == {
        ("backward", "all_reduce"): (2 * PSI, 2),
        ("step", "all_gather_into_tensor"): (PSI, 1),
    }


def test_every_row_moved_what_the_code_of_deepspeed_moves(run, rows):
    for record in rows.values():
        assert record.practice is not None
        assert measured_volumes(record.comm) == practice_volumes(record.practice)
        assert record.practice.comm_wire_bytes_per_step == record.comm.comm_wire_bytes_per_step
        assert {row.group for row in record.comm.collectives} == {"intra-node"}
    done = zerostage("report", run[0] / "runs" / "exact", "--traffic", "--format", "markdown")
    assert "7 of 7 rows" in done.stdout
    assert "where the paper reduce-scatters" in done.stdout
    short = zerostage("report", run[0] / "runs" / "exact", "--traffic-summary")
    assert "7 of 7 rows" in short.stdout
    assert "where the paper reduce-scatters" not in short.stdout


def test_only_ddp_reduces_while_backward_still_runs(rows):
    def reductions(strategy):
        return [row for row in rows[strategy, 1].comm.collectives if row.op == "all_reduce"]

    assert traffic(rows["ddp", 1]) == {("backward", "all_reduce"): (PSI, 1)}
    assert all(row.during_autograd for row in reductions("ddp"))
    assert not any(row.during_autograd for row in reductions("z0"))


def test_steady_memory_is_what_each_strategy_holds(rows):
    per_param = {key: record.memory.ranks[0].steady_bytes / PSI for key, record in rows.items()}
    # bf16 parameters, fp32 master copy, two fp32 moments per parameter; step counters and rotary frequencies are few.
    assert per_param["z0", 1] == pytest.approx(2 + 12, abs=0.002)
    assert per_param["ddp", 1] == pytest.approx(2 + 12 + 2, abs=0.002)  # and DDP's gradient bucket
    assert per_param["z3", 1] == pytest.approx((2 + 12 + 2) / 2 + 2 * BUCKET / PSI, abs=0.02)
    assert per_param["z1", 1] == pytest.approx(2 + 12 / 2, abs=0.002)
    assert per_param["z2", 1] == per_param["z1", 1]


def test_sharding_lowers_memory_in_the_order_of_the_stages(rows):
    peaks = [rows[strategy, 1].memory.peak_allocated_bytes for strategy in ("z0", "z1")]
    assert peaks[0] > peaks[1]
    for record in rows.values():
        ranks = [rank.peak_allocated_bytes for rank in record.memory.ranks]
        assert record.memory.peak_allocated_bytes == max(ranks)
        assert record.memory.peak_allocated_min_bytes == min(ranks)


def test_all_strategies_train_on_the_same_data_from_the_same_weights(rows):
    first = {strategy: record.losses[0] for (strategy, gas), record in rows.items() if gas == 1}
    assert max(first.values()) - min(first.values()) < 1e-6
    for record in rows.values():
        assert len(record.losses) == 5 + 1 + 3
        assert record.skipped_steps == 0
        odd = record.cell.strategy == "z0"  # AdamW's idle step in 16 bit
        assert record.validity == ("suspect" if odd else "valid"), record.findings
        assert {finding.affects for finding in record.findings if finding.verdict == "suspect"} <= {"training"}
        assert record.parity.worst_loss_difference < record.parity.loss_tolerance


def test_the_engine_is_asked_what_it_runs(rows):
    assert {key: record.effective["zero_stage"] for key, record in rows.items() if key[1] == 1} == {
        ("ddp", 1): None, ("z0", 1): 0, ("z1", 1): 1, ("z2", 1): 2, ("z3", 1): 3,
    }  # fmt: skip
    assert rows["z0", 1].effective["optimizer_wrapper"] == "FP16_UnfusedOptimizer"
    assert {record.effective["optimizer"] for record in rows.values()} == {"AdamW"}


def test_raw_times_are_kept_for_every_rank_and_step(rows):
    for record in rows.values():
        assert [len(steps) for steps in record.timing.step_times_s] == [3, 3]
        assert [len(steps) for steps in record.timing.step_thread_cpu_times_s] == [3, 3]


def test_the_run_prints_its_tables(run):
    assert "Throughput" in run[1]
    assert "Peak memory" in run[1]
    assert "Traffic" in run[1]
    assert "No multi-GPU row has been measured here" in run[1]


def test_running_again_launches_nothing_and_changes_no_record(run):
    folder, _ = run
    records = folder / "runs" / "exact" / "records"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in records.iterdir()}
    done = zerostage("run", folder / "exact.yaml", "--results", folder / "runs")
    assert done.returncode == 0
    assert "7 of 7 rows are there already" in done.stdout
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in records.iterdir()} == before


def test_csv_has_one_row_per_record(run):
    done = zerostage("report", run[0] / "runs" / "exact", "--format", "csv", "--rows", "records")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 7
    assert {row["status"] for row in rows} == {"completed"}
    assert all(float(row["tokens_per_second"]) > 0 for row in rows)


def test_markdown_is_made_of_the_same_tables(run):
    done = zerostage("report", run[0] / "runs" / "exact", "--format", "markdown")
    assert done.stdout.count("### Traffic") == 2  # one per number of accumulation steps
    assert "| z3" in done.stdout


def test_rerun_prints_a_command_that_measures_that_cell_again(run):
    folder, _ = run
    done = zerostage("report", folder / "runs" / "exact", "--rerun", "llama-tiny/z1/w2/mbs1/gas1/s32/bf16")
    argv = done.stdout.split()
    assert argv[:2] == ["zerostage", "run"]
    again = zerostage(*argv[1:])
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 earlier rows put aside" in again.stdout
    aside = list((folder / "runs" / "exact" / "superseded").glob("*/records/*.json"))
    assert [json.loads(path.read_text())["cell"]["strategy"] for path in aside] == ["z1"]
    assert len(read_records(folder / "runs" / "exact")) == 7
