"""A user's mistake, through the real command line: one clear message, exit status 2, no traceback, nothing lost."""

import json
import signal
import subprocess
import sys

import pytest
import yaml
from conftest import zerostage

from bench.cli import main

GOOD = {"model": "llama-tiny", "strategy": "z0"}


def refused(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    return done


@pytest.fixture
def inside(monkeypatch, capsys):
    """Return the command line in this process, for mistakes that nothing is started for: it takes no three seconds."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["zerostage", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, shown.out, shown.err)

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ({"matrix": GOOD, "repeats": 3}, ["'repeats'", "did you mean 'repeat'"]),
        ({"matrix": GOOD | {"seq_lenght": 8}}, ["'matrix.seq_lenght'", "did you mean 'seq_length'"]),
        ({"matrix": GOOD | {"strategy": "zero3"}}, ["matrix.strategy", "unknown strategy 'zero3'", "z3"]),
        ({"matrix": GOOD | {"world_size": -2}}, ["matrix.world_size", "-2"]),
        ({"matrix": GOOD | {"model": "llama-tyni"}}, ["matrix.model", "did you mean 'llama-tiny'"]),
        ({"matrix": GOOD, "exclude": [{"strategy": "z0"}]}, ["no cell is left to run"]),
        ({"matrix": GOOD, "data": {"kind": "text", "path": "/nowhere/at/all"}}, ["data.path", "/nowhere/at/all"]),
        ({"matrix": GOOD, "zero_optimization": {"reduce_bucket": 5}}, ["did you mean 'reduce_bucket_size'"]),
        ([1, 2], ["matrix"]),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_wrong_scenario_names_file_key_and_remedy(inside, tmp_path, command, scenario, words):
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(scenario))
    refused(inside(command, path, "--results", tmp_path / "runs"), str(path), *words)
    assert not (tmp_path / "runs").exists()


def test_a_results_folder_that_cannot_be_written_is_refused_before_any_launch(scenario_file, tmp_path):
    (tmp_path / "file").write_text("")
    done = zerostage("run", scenario_file(GOOD), "--results", tmp_path / "file")
    refused(done, str(tmp_path / "file"), "--results")


def test_a_glob_that_matches_nothing_says_what_there_is(scenario_file, tmp_path):
    refused(zerostage("plan", scenario_file(GOOD), "--only", "z9*"), "--only z9*", "z0", "llama-tiny")


@pytest.fixture
def run_of_two(scenario_file, tmp_path):
    """A run folder with two rows that cost no launch."""
    path = scenario_file(GOOD | {"strategy": ["z0", "z1"], "world_size": 99})
    assert zerostage("run", path, "--results", tmp_path / "runs").returncode == 0
    return path, tmp_path / "runs" / path.stem


@pytest.mark.parametrize("text", ["", '{"schema_version": 1, "cell_', "[]", '{"schema_version": 999}'])
def test_a_damaged_record_is_named_and_the_others_are_kept(run_of_two, text):
    path, run = run_of_two
    torn, whole = sorted((run / "records").iterdir())
    before = whole.read_bytes()
    torn.write_text(text)
    refused(zerostage("report", run), str(torn))
    refused(zerostage("run", path, "--results", run.parent), str(torn))
    assert whole.read_bytes() == before
    assert torn.read_text() == text
    torn.unlink()  # the remedy that the message gives
    assert zerostage("run", path, "--results", run.parent).returncode == 0
    assert whole.read_bytes() == before
    assert torn.exists()


def test_rows_of_another_stack_are_never_mixed_in(run_of_two):
    path, run = run_of_two
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"num_cores": ', '"num_cores": 9'))
    refused(zerostage("run", path, "--results", run.parent), "another stack", "num_cores", "--fresh")
    done = zerostage("run", path, "--results", run.parent, "--fresh")
    assert done.returncode == 0
    assert "2 earlier rows put aside" in done.stdout
    assert len(list(run.glob("superseded/*/records/*.json"))) == 2


def test_a_refused_fresh_run_moves_no_row(run_of_two):
    path, run = run_of_two
    manifest = run / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"num_cores": ', '"num_cores": 9'))
    before = sorted(record.name for record in (run / "records").iterdir())
    refused(zerostage("run", path, "--results", run.parent, "--fresh", "--only", "z1"), "another stack")
    assert sorted(record.name for record in (run / "records").iterdir()) == before


def test_a_copied_record_is_not_another_repeat(run_of_two):
    _, run = run_of_two
    first = min((run / "records").iterdir())
    (run / "records" / "copy.json").write_text(first.read_text())
    refused(zerostage("report", run), "copy.json", "copy of record")


@pytest.mark.parametrize("name", ["[red]hot", "x[/red]", "[/bold]", ":smile:"])
def test_markup_in_a_name_is_text(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    path = tmp_path / name / "cells.yaml"
    path.write_text(yaml.safe_dump({"matrix": GOOD | {"world_size": 99, "model": f"./{name}"}}))
    (tmp_path / name / name).mkdir(parents=True)
    config = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / name / name / "config.json").write_text(json.dumps(config))
    for command in ("plan", "run", "run"):
        done = zerostage(command, path, "--results", tmp_path / name / "runs")
        assert done.returncode == 0, done.stderr
        assert name.split("/")[-1] in done.stdout


def test_report_of_a_folder_that_is_no_run_is_refused(tmp_path):
    refused(zerostage("report", tmp_path), str(tmp_path), "manifest.json")


def test_rerun_of_an_unknown_cell_is_refused(run_of_two):
    refused(zerostage("report", run_of_two[1], "--rerun", "nope"), "no cell 'nope'", "zerostage plan")
