"""What DeepSpeed prints and its autotuner writes, of several generations."""

import json
from pathlib import Path

import pytest

from bench.imports import autotuner, comms_log, deepcompile, deepspeed_log
from bench.imports.files import rows
from bench.imports.row import ImportedRow

DATA = Path(__file__).parents[1] / "data" / "imports"


def read(name: str) -> ImportedRow:
    (row,) = rows(DATA / name)
    return row


def figures(row: ImportedRow) -> dict[str, float]:
    return {figure.name: figure.value for figure in row.as_given}


def covers(row: ImportedRow) -> dict[str, str]:
    return {figure.name: figure.what for figure in row.as_given}


def texts(row: ImportedRow) -> list[str]:
    return [finding.text for finding in row.findings]


def test_log_of_0_19():
    row = read("deepspeed_0.19.log")
    assert (row.format, row.status, row.reason) == ("DeepSpeed log", "completed", None)
    assert figures(row) == {
        "running_avg_samples_per_second": 18.75,
        "curr_samples_per_second": 18.5,
        "mem_allocated_gib": 7.31,
        "max_mem_allocated_gib": 22.0,
        "optimizer_allgather_ms": 3.4,
        "optimizer_gradients_ms": 75.62,
        "optimizer_step_ms": 572.19,
        "fwd_ms": 310.0,
        "bwd_ms": 720.0,
        "bwd_inner_ms": 490.0,
        "bwd_allreduce_ms": 230.0,
        "step_ms": 651.0,
        "ma_gib": 7.25,
        "max_ma_gib": 8.5,
        "ca_gib": 9.25,
        "max_ca_gib": 9,
        "cpu_virtual_memory_used_gib": 62.62,
    }
    assert covers(row)["curr_samples_per_second"] == "median of 2 lines, one optimizer step each, all ranks"
    assert covers(row)["step_ms"] == "median of 3 lines, per optimizer step, rank 0"
    assert row.settings == {
        "world_size": 8,
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_enabled": True,
        "zero_optimization_stage": 2,
        "bfloat16_enabled": True,
        "fp16_enabled": False,
        "offload_optimizer": "cpu",
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "overlap_comm": True,
        "reduce_bucket_size": 500_000_000,
        "allgather_bucket_size": 500_000_000,
        "final_optimizer": "DeepSpeedZeroOptimizer",
        "deepspeed_version": "0.19.8",
    }
    assert texts(row)[:4] == [
        deepspeed_log.BETWEEN,
        deepspeed_log.RANK_0,
        deepspeed_log.PHASES,
        deepspeed_log.ROUNDED,
    ]
    assert texts(row)[4].startswith("optimizer steps skipped: 1 of 3 (no optimizer_allgather)")
    assert len(texts(row)) == 5


def test_log_of_2022_with_skipped_steps_and_lines_of_megatron():
    row = read("deepspeed_2022.log")
    assert figures(row) == {
        "samples_per_second": 83.5,
        "mem_allocated_gib": 0.26,
        "max_mem_allocated_gib": 9.02,
        "forward_ms": 300.0,
        "backward_ms": 710.0,
        "backward_inner_ms": 500.0,
        "backward_allreduce_ms": 210.0,
        "step_ms": 1.5,
        "optimizer_gradients_ms": 40.0,
        "optimizer_step_ms": 300.0,
        "optimizer_allgather_ms": 90.0,
    }
    assert row.settings["zero_optimization_stage"] == 1
    assert row.settings["overlap_comm"] is False
    assert deepspeed_log.MICRO_BATCH in texts(row)
    assert texts(row)[-1].startswith("optimizer steps skipped: 2 of 3 (skipped=)")


def test_log_of_2020_has_micro_steps_and_no_memory():
    row = read("deepspeed_2020.log")
    assert figures(row) == {
        "samples_per_second": 7.458824487454903,
        "forward_microstep_ms": 195.5,
        "backward_microstep_ms": 331.25,
        "backward_inner_microstep_ms": 330.0,
        "backward_allreduce_microstep_ms": 0.05,
        "step_microstep_ms": 0.92,
    }
    assert covers(row)["step_microstep_ms"] == "median of 1 line, per micro step, rank 0"
    assert covers(row)["samples_per_second"] == "cumulative, first steps left out, to micro step 450, all ranks"


def test_log_of_0_7_counts_overflows():
    row = read("overflow_only.log")
    assert figures(row)["curr_samples_per_second"] == 152.5
    assert covers(row)["curr_samples_per_second"] == "median of 2 lines, one micro step each, all ranks"
    assert texts(row)[-1].startswith("optimizer steps skipped: 1 (OVERFLOW lines)")


def test_steps_of_one_rank_are_counted_once():
    lines = [
        f"[deepscale] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 8, reducing to 4" for rank in "0123"
    ]
    found = deepspeed_log.log_text("\n".join(lines))
    assert found is not None
    assert found.findings[-1].text.startswith("optimizer steps skipped: 1 (OVERFLOW lines)")


def test_stage_3_has_no_gather_after_a_step_and_skips_none():
    lines = [
        "[config.py:1:print]   zero_optimization_stage ...... 3",
        "time (ms) | optimizer_step: 5.00",
        "time (ms) | step: 6.00",
    ]
    found = deepspeed_log.log_text("\n".join(lines))
    assert found is not None
    assert [finding.text for finding in found.findings] == [deepspeed_log.PHASES]


def test_stage_0_in_bf16_was_sharded():
    row = read("bf16_stage_0.log")
    assert (row.as_given, texts(row)) == ([], [deepspeed_log.SHARDED_0])
    assert row.settings["reduce_bucket_size"] == 500_000_000


def test_allocator_flushes_of_both_wordings():
    row = read("flushes.log")
    assert texts(row) == ["5 allocator cache flushes: memory was nearly out, steps take longer than with room to spare"]
    assert row.findings[0].check == "allocator"


def test_reserved_peak_is_rounded():
    found = deepspeed_log.log_text("MA 4.96 GB         Max_MA 5.09 GB         CA 6.39 GB         Max_CA 6 GB ")
    assert found is not None
    assert [figure.value for figure in found.as_given] == [4.96, 5.09, 6.39, 6]
    assert deepspeed_log.ROUNDED in [finding.text for finding in found.findings]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("killed.log", "crashed", "a rank was killed by SIGKILL, without evidence of the kernel's OOM killer"),
        ("killed_oom.log", "host_oom", "a rank was killed: slurmstepd: error: Detected 1 oom_kill event"),
        ("watchdog.log", "hang", "rank(s) 3, 5 waited in all_gather_into_tensor, until the NCCL watchdog gave up"),
        ("experiment_failed/stderr.log", "oom", "torch.cuda.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_how_a_run_ended(name, status, reason):
    row = read(name)
    assert row.status == status
    assert row.reason is not None
    assert row.reason.startswith(reason)


def test_watchdog_shows_the_group_and_its_time_out():
    assert read("watchdog.log").settings == {"watchdog_timeout_ms": 1_800_000, "collective_group_size": 8}


def test_verbose_comms_lines_are_summed():
    row = read("comms_verbose.log")
    assert row.format == "DeepSpeed comms log"
    assert figures(row) == {
        "all_reduce_bytes": 2 * 1.5 * 2**20,
        "all_reduce_calls": 2,
        "all_reduce_ms": 4.5,
        "all_gather_into_tensor_bytes": 256 * 2**10,
        "all_gather_into_tensor_calls": 1,
        "all_gather_into_tensor_ms": 1.25,
        "barrier_calls": 1,
        "barrier_ms": 0.5,
    }
    assert texts(row) == [comms_log.SYNCHRONISED, comms_log.CONVENTIONS]


def test_comms_summary_counts_no_call_twice():
    row = read("comms_summary.log")
    assert figures(row)["all_gather_into_tensor_calls"] == 10
    assert figures(row)["all_gather_into_tensor_bytes"] == 10 * 64 * 2**20
    assert figures(row)["reduce_scatter_tensor_bytes"] == 4 * 2560 + 2 * 2**30
    assert figures(row)["reduce_scatter_tensor_ms"] == 902.0
    assert covers(row)["all_gather_into_tensor_bytes"].startswith("shard x calls, rank 0")
    assert covers(row)["reduce_scatter_tensor_bytes"].startswith("whole input x calls, rank 0")


def test_comms_summary_as_an_object():
    row = read("comms_summary.json")
    assert figures(row) == {"all_reduce_bytes": 3000, "all_reduce_calls": 3, "all_reduce_ms": 1.5}
    assert row.settings == {"world_size": 8}
    assert texts(row) == [comms_log.SYNCHRONISED]


def test_each_result_line_of_the_deepcompile_benchmark_is_a_run():
    first, second = rows(DATA / "deepcompile.txt")
    assert figures(first) == {"iteration_time_s": 1.25, "alloc_mem_bytes": 2**34, "peak_mem_bytes": 2**35}
    assert figures(second) == {"iteration_time_s": 0.75, "alloc_mem_bytes": 2**34, "peak_mem_bytes": 40_000_000_000}
    assert first.sha256 == second.sha256
    assert first.row_id != second.row_id
    assert second.settings["compile_time"] == 12.5
    assert second.settings["deepcompile"] is True
    assert texts(first) == [deepcompile.CLOCK, deepcompile.MEMORY, deepcompile.STAGE]


def test_experiment_of_the_autotuner_with_its_configuration():
    row = read("experiment/metrics.json")
    assert (row.format, row.status) == ("DeepSpeed autotuner", "completed")
    assert figures(row) == {
        "throughput_samples_per_second": 16.0,
        "flops_per_gpu_per_second": 7.5e13,
        "forward_us": 1e6,
        "backward_us": 2e6,
        "step_us": 1e6,
        "latency_us": 4e6,
    }
    assert row.settings["zero_optimization_stage"] == 2
    assert row.settings["num_gpus"] == 8
    assert texts(row) == [autotuner.PARTS, autotuner.FLOPS]


def test_from_six_accumulation_steps_on_the_optimizer_is_trimmed_away():
    row = read("experiment_gas8/metrics.json")
    assert figures(row) == {
        "throughput_samples_per_second": 1600.0,
        "fwd_us": 500.0,
        "bwd_us": 700.0,
        "step_us": 50.0,
        "latency_us": 10000.0,
    }
    assert texts(row) == [autotuner.PARTS, autotuner.NO_FLOPS, autotuner.TRIMMED]


def test_the_trimmed_mean_of_the_installed_deepspeed_drops_the_only_step_of_the_optimizer():
    timer = pytest.importorskip("deepspeed.utils.timer")
    for steps in (autotuner.TRIMMED_FROM_GAS - 1, autotuner.TRIMMED_FROM_GAS):
        kept = timer.trim_mean([0.0] * (steps - 1) + [1000.0], 0.1) > 0
        assert kept == (steps < autotuner.TRIMMED_FROM_GAS)


@pytest.mark.parametrize(
    ("metrics", "config", "unit", "finding"),
    [
        # 70 samples in 5.26 s, as deepspeedai/DeepSpeed#2711 shows them: microseconds, throughput 1000 times too low
        (
            {"forward": 2e6, "latency": 4e6, "throughput": 0.0175},
            {"train_batch_size": 70},
            "ms_or_us",
            autotuner.UNCLEAR,
        ),
        ({"forward": 2e6, "latency": 4e6, "throughput": 17.5}, {"train_batch_size": 70}, "us", None),
        ({"forward": 2e6, "latency": 4e6, "throughput": 17.5}, {}, "us", None),
        ({"forward": 2e6, "latency": 4e6, "throughput": 0.3}, {}, "unknown_unit", autotuner.UNKNOWN_UNIT),
        ({"fwd": 2e6, "latency": 4e6, "throughput": 0.3}, {}, "us", None),
        (
            {"forward": 4e6, "latency": 4e6, "throughput": 2.0},
            {"train_batch_size": 8, "gradient_accumulation_steps": 4},
            "us",
            autotuner.NO_GAS,
        ),
        (
            {"forward": 1e6, "latency": 4e6, "throughput": 2.0},
            {"train_batch_size": 8, "gradient_accumulation_steps": 4},
            "us",
            None,
        ),
    ],
)
def test_the_unit_of_the_autotuner_follows_from_the_batch(metrics, config, unit, finding):
    reading = autotuner.metrics(metrics, {}, config, "", "")
    assert f"latency_{unit}" in {figure.name for figure in reading.as_given}
    assert [f.text for f in reading.findings] == [autotuner.PARTS] + ([finding] if finding else [])


def test_a_metric_of_0_is_a_failure_and_no_number(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"throughput": 0, "latency": 0, "FLOPS_per_gpu": 0}))
    (row,) = rows(tmp_path / "metrics.json")
    assert (row.status, row.as_given) == ("crashed", [])
    assert row.reason == "the metric is 0, as the autotuner writes for an experiment that failed"
    (tmp_path / "stderr.log").write_text((DATA / "experiment_failed" / "stderr.log").read_text())
    (row,) = rows(tmp_path / "metrics.json")
    assert row.status == "oom"


def test_an_experiment_without_metrics_is_a_failed_row():
    row = read("experiment_failed/exp.json")
    assert (row.status, row.as_given) == ("oom", [])
    assert row.reason is not None
    assert row.reason.startswith("the experiment left no metrics.json; torch.cuda.OutOfMemoryError: CUDA out of memory")
    assert row.settings["name"] == "z3_gas1_tmbspg64"


def test_timers_of_the_installed_deepspeed_are_read(capsys, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    timer = pytest.importorskip("deepspeed.utils.timer")
    timers = timer.SynchronizedWallClockTimer()
    for name in (timer.FORWARD_GLOBAL_TIMER, timer.BACKWARD_GLOBAL_TIMER, timer.STEP_GLOBAL_TIMER):
        timers(name).start()
        timers(name).stop()
    timers.log([timer.FORWARD_GLOBAL_TIMER, timer.BACKWARD_GLOBAL_TIMER, timer.STEP_GLOBAL_TIMER])
    found = deepspeed_log.log_text(capsys.readouterr().out)
    assert found is not None
    assert [figure.name for figure in found.as_given] == ["fwd_ms", "bwd_ms", "step_ms"]


def test_throughput_lines_of_the_installed_deepspeed_are_read():
    timer = pytest.importorskip("deepspeed.utils.timer")
    lines: list[str] = []

    class Config:
        enabled, synchronized = True, False

    throughput = timer.ThroughputTimer(Config(), batch_size=16, steps_per_output=1, logging_fn=lines.append)
    for _ in range(5):
        throughput.start()
        throughput.stop(global_step=True)
    found = deepspeed_log.log_text("\n".join(lines))
    assert found is not None
    assert [figure.name for figure in found.as_given] == [
        "running_avg_samples_per_second",
        "curr_samples_per_second",
        "mem_allocated_gib",
        "max_mem_allocated_gib",
    ]
    assert "to step 5," in found.as_given[0].what
