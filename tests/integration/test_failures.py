"""Every kind of failure, for real: a failed cell is a row with its reason, and the matrix goes on."""

from pathlib import Path

import pytest
from conftest import zerostage

from bench.launch.processes import RUN_MARKER, marked
from bench.store import read_records

pytestmark = pytest.mark.ranks


def buffers():
    """Return what DeepSpeed's CPU collective has in shared memory."""
    return set(Path("/dev/shm").glob("deepspeed_allreduce_buffer_*"))


def measure(path, fault=None):
    """Run a scenario of one cell and return the finished process and the cell's record."""
    runs, before = path.parent / "runs", buffers()
    done = zerostage("run", path, "--results", runs, fault=fault)
    (record,) = read_records(runs / path.stem)
    assert marked(RUN_MARKER, str((runs / path.stem).resolve())) == []
    assert buffers() <= before
    return done, record


def test_a_crash_in_rank_1_is_named_with_the_first_exception(scenario_file):
    path = scenario_file({"strategy": "z1", "world_size": 2})
    done, record = measure(path, fault="raise")
    assert done.returncode == 1
    assert record.status == "crashed"
    assert record.failure.rank == 1
    assert record.failure.activity == "counting pass"
    assert record.reason == "rank 1, counting pass: RuntimeError: injected: rank 1 gives up"
    assert "injected: rank 1 gives up" in record.failure.traceback[-1]
    assert record.launch.log_tail
    assert "injected: rank 1 gives up" in (path.parent / "runs" / path.stem / record.launch.log).read_text()
    assert record.timing is None
    assert "crashed" in done.stdout


def test_a_killed_rank_is_a_crash_with_its_signal(scenario_file):
    done, record = measure(scenario_file({"strategy": "z0", "world_size": 2}), fault="kill")
    assert done.returncode == 1
    assert record.status == "crashed"
    # The launcher may see rank 0, which lost its peer, end before it sees rank 1.
    assert "killed by SIGKILL, without evidence of" in record.reason or "a rank ended without a word" in record.reason
    assert record.throughput is None


def test_exit_0_without_a_result_is_a_silent_exit(scenario_file):
    done, record = measure(scenario_file({"strategy": "ddp", "world_size": 2}), fault="exit")
    assert done.returncode == 1
    assert record.launch.exit_status == 0
    assert record.status == "silent_exit"


def test_ranks_that_all_sleep_are_out_of_time_and_leave_no_process(scenario_file):
    done, record = measure(scenario_file({"strategy": "z3", "world_size": 2}, timeout_s=12), fault="sleep")
    assert done.returncode == 1
    assert record.status == "timeout"
    assert record.reason.startswith("not done after 12 s, killed; rank")
    assert record.launch.exit_status is None


def test_running_out_of_memory_is_oom(scenario_file):
    # fp32: the reference run of so large a batch would take minutes in 16 bit on most CPUs.
    cell = {"strategy": "z0", "train_micro_batch_size_per_gpu": 64, "seq_length": 512, "dtype": "fp32"}
    done, record = measure(scenario_file(cell), fault="oom")
    assert record.status == "oom"
    assert record.reason.startswith("rank 0, counting pass, forward: RuntimeError: ")
    assert f"tried to allocate {record.failure.requested_bytes} bytes" in record.reason
    assert record.failure.phase == "forward"
    assert done.returncode == 0  # an answer, not a fault


def test_a_setting_that_deepspeed_refuses_is_a_config_error(scenario_file):
    path = scenario_file({"strategy": "z2"}, zero_optimization={"reduce_bucket_size": 0})
    done, record = measure(path)
    assert done.returncode == 1
    assert record.status == "config_error"
    assert "reduce_bucket_size" in record.failure.message


def test_a_dtype_that_the_machine_lacks_is_unsupported(scenario_file):
    import torch

    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU trains in fp16")
    done, record = measure(scenario_file({"strategy": "z1", "dtype": "fp16"}))
    assert done.returncode == 0
    assert record.status == "unsupported"
    assert "fp16" in record.reason


def test_the_matrix_goes_on_after_a_failure_and_keeps_its_row(scenario_file):
    path = scenario_file({"strategy": ["z2", "ddp"]}, zero_optimization={"reduce_bucket_size": 0})
    done = zerostage("run", path, "--results", path.parent / "runs")
    assert done.returncode == 1
    records = {record.cell.strategy: record for record in read_records(path.parent / "runs" / path.stem)}
    assert records["z2"].status == "config_error"
    assert records["ddp"].status == "completed"
    again = zerostage("run", path, "--results", path.parent / "runs")
    assert "2 of 2 rows are there already" in again.stdout
    assert again.returncode == 1


def test_cells_above_the_slots_are_rows_with_the_reason(scenario_file):
    path = scenario_file({"strategy": "z1", "world_size": 8})
    done = zerostage("run", path, "--results", path.parent / "runs", CUDA_VISIBLE_DEVICES="")
    (record,) = read_records(path.parent / "runs" / path.stem)
    assert done.returncode == 0
    assert record.status == "skipped"
    slots = "world_size 8 is above the 4 cpu slots here (--cpu-slots 8)"
    assert record.reason == f"{slots}; mode: auto emulates it"
    assert "skipped" in done.stdout
