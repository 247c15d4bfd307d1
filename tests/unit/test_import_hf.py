"""What the HF Trainer and LLaMA-Factory write, read as it is."""

import json
from pathlib import Path

import pytest

from bench.imports import hf
from bench.imports.files import rows
from bench.imports.row import ImportedRow

DATA = Path(__file__).parents[1] / "data" / "imports"


def read(name: str) -> ImportedRow:
    (row,) = rows(DATA / name)
    return row


def figures(row: ImportedRow) -> dict[str, float]:
    return {figure.name: figure.value for figure in row.as_given}


def texts(row: ImportedRow) -> list[str]:
    return [finding.text for finding in row.findings]


def test_results_are_cumulative_and_their_rounding_is_told():
    row = read("all_results.json")
    assert (row.format, row.status, row.validity, row.provenance) == ("HF results", "completed", "suspect", "imported")
    assert figures(row) == {
        "train_runtime_s": 800.5,
        "train_samples_per_second": 9.994,
        "train_steps_per_second": 0.012,
        "train_tokens_per_second": 5117.25,
        "train_loss": 2.125,
        "total_flos": 1.5e17,
        "epoch": 2.0,
    }
    assert {figure.name: figure.kind for figure in row.as_given}["train_runtime_s"] == "time"
    assert texts(row) == [
        hf.CUMULATIVE,
        hf.TOKENS,
        "train_steps_per_second is rounded to three decimals: 0.012 is exact to 4%",
    ]


def test_a_speed_that_rounding_took_away_is_no_number():
    row = hf.results({"train_runtime": 9e5, "train_steps_per_second": 0.0, "train_samples_per_second": 0.1})
    assert [figure.name for figure in row.as_given] == ["train_runtime_s", "train_samples_per_second"]
    assert any(f.text.startswith("train_steps_per_second is 0: ") for f in row.findings)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "fast", [], 10**400, True])
def test_what_is_no_speed_is_a_finding(value):
    row = hf.results({"train_runtime": 8.0, "train_samples_per_second": value})
    assert [figure.name for figure in row.as_given] == ["train_runtime_s"]
    assert any(
        f.text.startswith("train_samples_per_second is ") and f.text.endswith(": not kept") for f in row.findings
    )


def test_state_of_a_finished_run_has_the_speeds_of_its_last_entry():
    row = read("trainer_state_final.json")
    assert row.status == "completed"
    assert figures(row) == {
        "global_step": 20,
        "loss": 0.0,
        "train_runtime_s": 50.4,
        "train_samples_per_second": 3.175,
        "train_steps_per_second": 0.397,
        "train_tokens_per_second": 1631.873,
        "train_loss": 1.75,
        "epoch": 1.0,
        "num_input_tokens_seen": 81920,
    }
    assert row.settings == {"max_steps": 20, "num_train_epochs": 1, "train_batch_size": 4, "logging_steps": 10}
    assert texts(row) == [
        hf.CUMULATIVE,
        hf.TOKENS,
        hf.NO_FLOS,
        "grad_norm is nan: not kept",
        "1 of 2 logged losses are 0 or not a number, first at step 20",
    ]
    assert row.findings[-1].affects == "training"


def test_state_of_a_checkpoint_says_neither_speed_nor_end():
    row = read("trainer_state_checkpoint.json")
    assert (row.status, row.validity, row.findings) == (None, "unchecked", [])
    assert figures(row) == {"global_step": 5, "loss": 3.5, "total_flos": 2e15, "epoch": 0.25}


def test_printed_metrics_keep_the_units_that_were_printed():
    row = read("train_metrics.txt")
    assert (row.format, row.status) == ("HF train metrics", "completed")
    assert figures(row) == {
        "epoch": 2.0,
        "train_loss": 2.125,
        "train_runtime_s": 90030.25,
        "train_samples_per_second": 9.994,
        "train_steps_per_second": 0.5,
        "total_flos_x2^30": 139698,
        "train_mem_gpu_peaked_delta_mib": 693,
    }


def test_printed_metrics_of_the_installed_transformers_are_read():
    trainer_pt_utils = pytest.importorskip("transformers.trainer_pt_utils")
    metrics = {"epoch": 1.0, "train_loss": 0.5, "train_runtime": 3725.5, "train_samples_per_second": 1234.5678}
    lines = trainer_pt_utils.metrics_format(metrics | {"total_flos": 3 * 2.0**30})
    text = "***** train metrics *****\n" + "".join(f"  {key: <24} = {value:>12}\n" for key, value in lines.items())
    found = hf.block(text)
    assert found is not None
    assert {figure.name: figure.value for figure in found.as_given} == {
        "epoch": 1.0,
        "train_loss": 0.5,
        "train_runtime_s": 3725.5,
        "train_samples_per_second": 1234.5678,
        "total_flos_x2^30": 3,
    }


def test_evaluation_alone_is_no_training_figure():
    assert not hf.is_results({"eval_loss": 1.0, "eval_runtime": 2.0})
    assert hf.block("***** eval metrics *****\n  eval_runtime = 0:00:02.00\n") is None


def test_llamafactory_log_is_cumulative_and_a_torn_last_line_is_passed_over():
    row = read("trainer_log.jsonl")
    assert (row.format, row.status) == ("LLaMA-Factory trainer log", None)
    assert figures(row) == {
        "throughput_tokens_per_second": 2340.57,
        "total_tokens": 163840,
        "current_steps": 20,
        "loss": 2.25,
    }
    assert ["hiyouga/LlamaFactory#5197" in text for text in texts(row)] == [True]


def test_llamafactory_log_of_one_line_that_ended(tmp_path):
    path = tmp_path / "log"
    path.write_text(json.dumps({"current_steps": 4, "total_steps": 4, "loss": 1.5}))
    (row,) = rows(path)
    assert (row.format, row.status, row.settings) == ("LLaMA-Factory trainer log", "completed", {"total_steps": 4})
