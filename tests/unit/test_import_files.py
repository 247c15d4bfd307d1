"""Files and folders through ``zerostage run import``: what is refused, what is kept, and how it is shown."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.cli import app, main
from bench.errors import BenchError, ImportedFileError, StoreError
from bench.imports.detect import decoded, recognised
from bench.imports.files import import_files, rows
from bench.imports.row import ImportedRow, parse_row
from bench.runs import latest_run
from bench.store import MANIFEST_VERSION, imported_path, read_imported, read_records, write_imported

DATA = Path(__file__).parents[1] / "data" / "imports"
V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"


def zerostage(*arguments: object) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output, done.exception


def test_a_folder_gives_a_row_per_run_and_none_twice(tmp_path):
    new, known = import_files([DATA], tmp_path / "runs" / "imported")
    stored = read_imported(tmp_path / "runs" / "imported")
    assert (new, known) == (len(stored), 0)
    sources = [row.source for row in stored]
    # Each file, the two lines of deepcompile.txt, and the three experiments; not the logs of an experiment.
    assert sources.count("deepcompile.txt") == 2
    assert sorted(set(sources)) == sorted(
        {p.name for p in DATA.iterdir() if p.is_file()} | {"metrics.json", "exp.json"}
    )
    assert sources.count("metrics.json") == 2
    assert sources.count("exp.json") == 1
    assert import_files([DATA, DATA / "killed.log"], tmp_path / "runs" / "imported") == (0, new)
    assert read_imported(tmp_path / "runs" / "imported") == stored


def test_no_path_of_this_machine_is_kept(tmp_path):
    import_files([DATA], tmp_path)
    for path in (tmp_path / "imported").iterdir():
        assert str(DATA.parent) not in path.read_text()
        assert str(tmp_path) not in path.read_text()


def test_the_same_content_under_another_name_is_the_same_run(tmp_path):
    shutil.copy(DATA / "all_results.json", tmp_path / "train_results.json")
    assert import_files([DATA / "all_results.json", tmp_path / "train_results.json"], tmp_path / "run") == (1, 0)
    (row,) = read_imported(tmp_path / "run")
    assert row.source == "all_results.json"


def test_failed_experiments_of_equal_metrics_are_two(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text('{"throughput": 0, "latency": 0}')
        (tmp_path / name / "exp.json").write_text(json.dumps({"name": name, "ds_config": {}}))
    assert import_files([tmp_path], tmp_path / "run") == (2, 0)


@pytest.mark.parametrize(
    ("content", "looks"),
    [
        (b"", "an empty file"),
        (b" \n\t\n", "an empty file"),
        (b"\x89PNG\0\0", "a binary file"),
        (b'{"train_runtime": 1.0, "tra', "torn or damaged JSON (Unterminated string"),
        (b"[" * 100_000, "torn or damaged JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "torn or damaged JSON"),
        (b"[1, 2]", "JSON, but not an object"),
        (b'{"lr": 1, "warmup": 2}', "a JSON object with keys 'lr', 'warmup'"),
        (b"{}", "a JSON object with keys none"),
        (b'{"summary": {}, "metadata": {}}', "a JSON object with keys 'summary', 'metadata'"),
        (b'{"eval_loss": 1.0}', "a JSON object with keys 'eval_loss'"),
        (b"hello world", "text without a line that is known"),
        ("\ufeffhello".encode("utf-16"), "text without a line that is known"),
    ],
)
def test_what_is_none_of_them_is_named(tmp_path, content, looks):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ImportedFileError) as caught:
        rows(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: {looks}")
    assert "accepted are: all_results.json" in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_or_is_too_large(tmp_path, monkeypatch):
    with pytest.raises(ImportedFileError, match=r"absent: cannot read \(No such file or directory\)"):
        rows(tmp_path / "absent")
    monkeypatch.setattr("bench.imports.files.LARGEST_BYTES", 10)
    with pytest.raises(ImportedFileError, match=r"killed\.log: larger than .* MiB; cut the log"):
        rows(DATA / "killed.log")


def test_text_of_windows_is_read(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes((DATA / "deepspeed_2020.log").read_text().replace("\n", "\r\n").encode("utf-16"))
    (row,) = rows(path)
    assert row.as_given == rows(DATA / "deepspeed_2020.log")[0].as_given


def test_a_progress_bar_does_not_hide_the_line_after_it(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b" 51%|####  | 507/1000 [15:32<16:42]\rtime (ms) | step: 2.50\n\xff\xfe broken bytes")
    (row,) = rows(path)
    assert [(figure.name, figure.value) for figure in row.as_given] == [("step_ms", 2.5)]


def test_one_log_of_trainer_and_deepspeed_is_one_row(tmp_path):
    path = tmp_path / "train.log"
    parts = ["deepspeed_2020.log", "comms_verbose.log", "train_metrics.txt"]
    path.write_text("".join((DATA / part).read_text() for part in parts))
    (row,) = rows(path)
    assert row.format == "DeepSpeed log, DeepSpeed comms log, HF train metrics"
    assert row.status == "completed"
    assert {"samples_per_second", "all_reduce_bytes", "train_runtime_s"} <= {figure.name for figure in row.as_given}
    path.write_text(path.read_text() + (DATA / "killed.log").read_text())
    assert rows(path)[0].status == "crashed"


def test_exp_json_beside_its_metrics_names_them():
    assert rows(DATA / "experiment" / "exp.json") == []
    with pytest.raises(ImportedFileError, match=r"describes the run of the metrics\.json beside it; name that file"):
        import_files([DATA / "experiment" / "exp.json"], Path("unused"))


def test_a_bad_file_costs_no_good_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad").write_text("nothing")
    files = [DATA / "all_results.json", tmp_path / "bad", tmp_path / "gone"]
    monkeypatch.setattr("sys.argv", ["zerostage", "run", "import", *map(str, files), "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "error",
        str(tmp_path / "gone"),
        f"1 other rows are in {tmp_path / 'imported'}",
    ]
    assert [row.source for row in read_imported(tmp_path / "imported")] == ["all_results.json"]


def test_a_folder_without_any_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ImportedFileError, match="no file below it is one that can be imported"):
        import_files([tmp_path], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_are_shown_as_given_and_apart(tmp_path):
    code, shown, _ = zerostage("run", "import", DATA / "all_results.json", DATA / "killed.log", "--results", tmp_path)
    assert code == 0
    assert "2 imported, 0 there already" in shown
    for format in ("terminal", "markdown"):
        code, shown, _ = zerostage("report", tmp_path / "imported", "--format", format)
        assert code == 0
        words = " ".join(shown.replace("│", "|").split())
        assert "Imported (as given)" in words
        assert "| train_steps_per_second | 0.012 | cumulative: since train() began, optimizer steps |" in words
        assert "completed ?" in words
        assert (
            "crashed: a rank was killed by SIGKILL, without evidence of the kernel's OOM killer [killed.log]" in words
        )
        assert "? suspect: Trainer speeds are over the whole train() call" in words
    assert zerostage("report", "--results", tmp_path)[:2] == zerostage("report", tmp_path / "imported")[:2]
    assert latest_run(tmp_path) == tmp_path / "imported"


def test_csv_has_columns_of_its_own(tmp_path):
    import_files([DATA / "all_results.json", DATA / "experiment"], tmp_path)
    code, shown, _ = zerostage("report", tmp_path, "--format", "csv")
    assert code == 0
    first, second = csv.DictReader(io.StringIO(shown))
    assert (first["provenance"], first["source"], first["as_given_train_runtime_s"]) == (
        "imported",
        "all_results.json",
        "800.5",
    )
    assert (second["said_zero_optimization_stage"], second["as_given_latency_us"]) == ("2.0", "4000000.0")
    assert "step_time_s" not in first


def run_with_a_measured_row(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(V1.read_text())
    scenario = {"matrix": {}, "repeat": 1, "zero_optimization": {}}
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "scenario": scenario,
        "scenario_path": "a.yaml",
        "scenario_name": "a",
        "environment": {},
        "cells": [{"cell_id": record["cell_id"], "label": record["label"]}],
    }
    (run / "records").mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "records" / f"{record['cell_id']}-r0.json").write_text(json.dumps(record))
    return record


def test_beside_measured_rows_the_tables_of_those_do_not_change(tmp_path):
    record = run_with_a_measured_row(tmp_path / "a")
    before = zerostage("report", tmp_path / "a", "--format", "markdown")[1]
    assert zerostage("run", "import", DATA / "all_results.json", "--results", tmp_path, "--name", "a")[0] == 0
    after = zerostage("report", tmp_path / "a", "--format", "markdown")[1]
    tables, _, notes = before.rpartition("\n\n")
    assert after.startswith(tables)
    assert all(note in after for note in notes.splitlines())
    assert "## Imported (as given)" in after
    assert len(read_records(tmp_path / "a")) == 1
    lines = list(
        csv.DictReader(io.StringIO(zerostage("report", tmp_path / "a", "--format", "csv", "--rows", "records")[1]))
    )
    assert [line["provenance"] for line in lines] == ["measured", "imported"]
    assert lines[0]["step_time_s"] == str(record["timing"]["step_time_s"])
    assert lines[1]["step_time_s"] == ""
    assert lines[0]["as_given_train_runtime_s"] == ""


def test_what_only_measured_rows_have_is_refused_in_words(tmp_path):
    import_files([DATA / "all_results.json"], tmp_path)
    for option in ("--traffic", "--memory"):
        _, _, error = zerostage("report", tmp_path, option)
        assert isinstance(error, StoreError)
        assert "it holds imported rows alone" in str(error)


def test_a_file_name_breaks_no_table(tmp_path):
    path = tmp_path / "a|b\nc.json"
    shutil.copy(DATA / "all_results.json", path)
    assert zerostage("run", "import", path, "--results", tmp_path)[0] == 0
    assert "| a?b?c.json " in zerostage("report", tmp_path / "imported", "--format", "markdown")[1]


def test_run_still_takes_a_scenario_and_help_names_both():
    code, shown, _ = zerostage("run", "--help")
    assert code == 0
    assert "--isolation" in shown
    assert "zerostage run import --help" in " ".join(shown.split())
    code, shown, _ = zerostage("run", "import", "--help")
    assert code == 0
    assert "--name" in shown
    assert "--isolation" not in shown
    _, _, error = zerostage("run", "absent.yaml")
    assert isinstance(error, BenchError)
    assert "absent.yaml" in str(error)


def stored(run: Path) -> ImportedRow:
    import_files([DATA / "killed.log"], run)
    (row,) = read_imported(run)
    return row


def test_a_stored_row_is_never_overwritten(tmp_path):
    row = stored(tmp_path)
    assert not write_imported(tmp_path, row.model_copy(update={"source": "another"}))
    assert read_imported(tmp_path) == [row]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*; choose a folder with --results"):
        import_files([DATA / "killed.log"], tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "torn or damaged imported row"),
        ("[]", "damaged imported row"),
        ('{"imported_version": 99}', "written by a newer zerostage"),
        ('{"imported_version": 1}', "damaged imported row ('row_id': Field required"),
    ],
)
def test_a_damaged_row_names_file_and_remedy(tmp_path, text, message):
    path = imported_path(tmp_path, stored(tmp_path).row_id)
    path.write_text(text)
    with pytest.raises(StoreError) as caught:
        read_imported(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def no_file(name: str) -> str:
    return ""


def accepted_or_refused(content: bytes) -> None:
    try:
        readings = recognised(decoded(content), no_file)
    except BenchError:
        return
    for reading in readings:
        row = ImportedRow(
            row_id="0",
            source="a",
            sha256="0",
            format=reading.format,
            imported_at="",
            status=reading.status,
            reason=reading.reason,
            validity="suspect",
            findings=reading.findings,
            settings=reading.settings,
            as_given=reading.as_given,
        )
        assert parse_row(json.dumps(row.model_dump(mode="json"), allow_nan=False), "a") == row


KNOWN = sorted(path.read_text() for path in DATA.rglob("*.*") if path.is_file())
KEYS = [
    "train_runtime", "train_samples_per_second", "total_flos", "log_history", "global_step", "max_steps", "loss",
    "throughput", "latency", "FLOPS_per_gpu", "forward", "step", "fwd", "ds_config", "name", "summary", "metadata",
    "count", "msg_size_bytes", "total_latency_ms", "world_size", "current_steps", "total_steps", "zero_optimization",
    "stage", "train_batch_size", "gradient_accumulation_steps",
]  # fmt: skip
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8))
def test_no_json_value_crashes(data):
    accepted_or_refused(json.dumps(data).encode())


@settings(max_examples=100, deadline=None)
@given(st.text() | st.lists(st.sampled_from(KNOWN), max_size=2).map("".join), st.integers(0, 5000), st.text(max_size=8))
def test_no_text_crashes(text, cut, noise):
    accepted_or_refused((text[:cut] + noise + text[cut:]).encode(errors="replace"))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_crash(content):
    accepted_or_refused(content)


NUMBERS = st.sampled_from(["nan", "inf", "-inf", "1e400", "-3", "9" * 30, "9" * 5000, "", "x", "0", "7.5e+10"])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KNOWN), st.integers(0, 200), NUMBERS)
def test_no_number_in_a_known_line_crashes(text, which, number):
    import re

    found = list(re.finditer(r"\d+(?:\.\d+)?", text))
    place = found[which % len(found)]
    accepted_or_refused((text[: place.start()] + number + text[place.end() :]).encode())
