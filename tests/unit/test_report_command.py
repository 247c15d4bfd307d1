"""`zerostage report`: formats, several runs, and what does not go together."""

import io
import json
import re

import pandas as pd
import pytest
from made import failed, made
from test_index import manifest
from typer.testing import CliRunner

from bench.cli import app
from bench.errors import BenchError
from bench.store import write_json, write_record


def run_folder(folder, records, **changes):
    for record in records:
        write_record(folder, record)
    whole = manifest(records)
    write_json(folder / "manifest.json", whole | {"scenario_name": folder.name} | changes)
    return folder


def report(*words):
    done = CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "a", [made("z0", repeat=r) for r in range(2)] + [made("z1"), failed("z3")])


def test_json_csv_and_parquet_hold_the_same_comparison(run, tmp_path):
    whole = json.loads(report(run, "--format", "json"))
    assert [(row["strategy"], row["launches"], row["outcome"]) for row in whole["rows"]] == [
        ("z0", 2, "completed"),
        ("z1", 1, "completed"),
        ("z3", 0, "oom"),
    ]
    assert whole["rows"][2]["step_time_s"] is None
    assert whole["columns"]["peak_allocated_bytes"]["unit"] == "B"
    assert set(whole["rows"][0]) == whole["columns"].keys()
    csv = pd.read_csv(io.BytesIO(report(run, "--format", "csv")))
    report(run, "--format", "parquet", "--output", tmp_path / "out.parquet")
    parquet = pd.read_parquet(tmp_path / "out.parquet")
    assert list(csv.columns) == list(parquet.columns) == list(whole["rows"][0])
    assert list(csv["peak_vs_base"].dropna()) == list(parquet["peak_vs_base"].dropna()) == [1.0, 1.0]


@pytest.mark.parametrize(("rows", "lines"), [("records", 4), ("cells", 3)])
def test_a_line_is_a_launch_or_a_cell(run, rows, lines):
    assert len(pd.read_csv(io.BytesIO(report(run, "--format", "csv", "--rows", rows)))) == lines


def test_a_line_can_be_a_metric(run):
    data = pd.read_csv(io.BytesIO(report(run, "--format", "csv", "--rows", "metrics")))
    assert len(data[data["metric"] == "step_time_s"]) == 3


def test_by_gpus_is_a_table_per_gpu_count(run):
    text = report(run, "--format", "markdown", "--by", "gpus").decode()
    assert "### N=2, measured" in text
    assert "By GPU count:" in text
    assert "## Answers" in text


def test_two_runs_stand_side_by_side_headed_by_what_differs(run, tmp_path):
    stack = made("z0").stack | {"deepspeed": "0.18.0"}
    other = run_folder(tmp_path / "b", [made("z0", step_s=0.2, stack=stack), made("z1", peak=500, stack=stack)])
    text = report(run, other, "--format", "markdown").decode()
    head = text[: text.index("##")]
    assert re.search(r"deepspeed: [\d.]+ \(a\), 0\.18\.0 \(b\)", head)
    assert "b: " not in head  # all its rows are there
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| z")}
    assert {"z0 a", "z0 b", "z1 a", "z1 b"} <= rows.keys()
    assert "0.50x" in rows["z1 b"] or "0.50x" in text
    assert "'vs a' is the ratio to the row of the same strategy" in text


def test_a_machine_may_differ_and_is_named(run, tmp_path):
    records = [made("z0", device="cuda", device_name="H200"), made("z1", device="cuda", device_name="H200")]
    text = report(run, run_folder(tmp_path / "b", records), "--format", "markdown").decode()
    assert "device: cpu (a), cuda (b)" in text
    assert "H200 (b)" in text


def test_a_strategy_of_one_name_and_two_configurations_is_named(run, tmp_path):
    cell = {"zero_optimization": {"reduce_bucket_size": 7}}
    text = report(run, run_folder(tmp_path / "b", [made("z1", cell=cell)]), "--format", "markdown").decode()
    assert re.search(r'zero_optimization of z1: \{.*\} \(a\), \{"reduce_bucket_size": 7\} \(b\)', text)


@pytest.mark.parametrize("name", ["zero_optimization", "seed"])
def test_one_setting_of_the_scenario_is_one_thing_however_many_strategies_have_it(run, tmp_path, name):
    value = {"reduce_bucket_size": 7} if name == "zero_optimization" else 7
    records = [made(strategy, cell={name: value}) for strategy in ("z0", "z1")]
    scenario = manifest(records)["scenario"] | {name: value}
    here = json.loads((run / "manifest.json").read_text())
    here["scenario"] |= {"zero_optimization": made("z0").cell.zero_optimization, "seed": made("z0").cell.seed}
    (run / "manifest.json").write_text(json.dumps(here))
    same = here["scenario"] | {name: scenario[name]}
    text = report(run, run_folder(tmp_path / "b", records, scenario=same), "--format", "markdown").decode()
    assert "One thing differs between the runs." in text
    assert f"scenario's {name}: " in text


def test_rows_that_are_not_there_yet_are_said_of_their_run(run, tmp_path):
    other = run_folder(tmp_path / "b", [made("z1")])
    whole = json.loads((other / "manifest.json").read_text())
    whole["cells"].append({"cell_id": "0" * 12, "label": "x"})
    (other / "manifest.json").write_text(json.dumps(whole))
    assert "b: 1 of 2 rows are not there yet." in report(run, other, "--format", "markdown").decode()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN", "RUN"], "a run folder is named twice"),
        (["RUN", "OTHER"], "the runs have no row to compare: seq_length: 128 (a), 99 (other)"),
        (["RUN", "--rows", "cells"], "--rows is of --format csv, json and parquet"),
        (["RUN", "--format", "csv", "--by", "gpus"], "--by is of --format terminal and markdown"),
        (["RUN", "--output", "x"], "--output needs a format for files"),
        (["RUN", "OTHER", "--format", "html"], "--format html is a page of one run"),
        (["RUN", "OTHER", "--memory"], "are of one run"),
        (["RUN", "--memory", "--format", "csv"], "go with --format terminal or markdown alone"),
        (["RUN", "--traffic", "--output", "x"], "go with --format terminal or markdown alone"),
        (["RUN", "--plots", "x", "--by", "gpus"], "go with --format terminal or markdown alone"),
        (["RUN", "--traffic-summary", "--rows", "cells"], "go with --format terminal or markdown alone"),
        (["RUN", "--format", "csv", "--output", "/no/such/folder/x"], "cannot write"),
        (["nowhere"], "nowhere: no run there"),
    ],
)
def test_a_mistake_is_one_error(run, tmp_path, words, said):
    other = run_folder(tmp_path / "other", [made("z0", cell={"seq_length": 99})])
    names = {"RUN": run, "OTHER": other}
    with pytest.raises(BenchError, match=re.escape(said)):  # which the command prints, with exit status 2
        report(*(names.get(word, word) for word in words))


def test_what_a_terminal_would_act_on_is_shown_as_a_sign(tmp_path):
    reason = "it said \x1b]0;title\x07 and \x1b[2J"
    run = run_folder(tmp_path / "odd", [made("z0"), failed("z1", reason=reason)])
    shown = report(run).decode()
    assert "\x1b" not in shown
    assert "it said ␛]0;title␇ and ␛[2J" in shown.replace("\n", " ")


def test_many_rows_are_shown_without_the_sentences_that_explain_them(run, monkeypatch):
    from bench.report import gather

    monkeypatch.setattr(gather, "SENTENCES_UP_TO", 1)
    said = gather.gather([run])
    assert any("left out" in note for note in said.notes)
    assert [table.title for table in said.tables][:1] == ["Throughput (tokens/s per GPU)"]


def test_markdown_keeps_its_lines_and_columns_whatever_rows_are_called(tmp_path):
    words = {"label": "a|b\nc", "reason": "first\n\n# second\r| x |"}
    rows = [made("z0"), made("z1", step_s=None, status="oom", cell={"name": "p|q\nr"}, **words)]
    odd = [row.model_copy(update={"cell": row.cell.model_copy(update={"model": "m|n\no"})}) for row in rows]
    text = report(run_folder(tmp_path / "odd", odd), "--format", "markdown").decode()
    assert text.startswith("## m|n o (0.3M parameters), ")
    assert "- oom: first # second | x | [a|b c]" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    # Of the tables by metric, and of the answers.
    assert {line.replace("\\|", "").count("|") for line in tables} == {5, 7}
    assert sum(line.startswith("| p\\|q r ") for line in tables) == 3
