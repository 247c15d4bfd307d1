"""The index says what the records say, whatever has happened to either; the records decide."""

import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest
from made import failed, made

import bench
from bench import index
from bench.analysis.columns import COLUMNS, LONG, is_metric
from bench.analysis.frame import frame
from bench.analysis.long import long
from bench.errors import StoreError
from bench.loading import run_names, together
from bench.runs import read_run
from bench.store import record_path, write_json, write_record


def manifest(records):
    cells = {(r.cell_id, r.requested_stack): {"cell_id": r.cell_id, "label": r.label} for r in records}
    return {
        "manifest_version": 1,
        "scenario": {"repeat": 1, "matrix": {}, "zero_optimization": {}},
        "scenario_path": "a.yaml",
        "scenario_name": "a",
        "cells": [cell | ({"stack": stack} if stack else {}) for (_, stack), cell in cells.items()],
        "environment": {"stack": {}, "zerostage": {"version": "0"}, "platform": "p", "memory_bytes": 1, "gpus": []}
        | {"variables": {}},
    }


@pytest.fixture
def records():
    rows = [made("z3"), made("z0"), made("z1", repeat=1), made("z1"), failed("z2")]
    return [*rows, made("z0", requested_stack="deepspeed==0.18.0")]


@pytest.fixture
def run(tmp_path, records):
    folder = tmp_path / "a"
    for record in records:
        write_record(folder, record)
    write_json(folder / "manifest.json", manifest(records))
    return folder


def same(run):
    pd.testing.assert_frame_equal(index.rows(run), frame(read_run(run).records), check_dtype=False)


def read_anew(run):
    """Return how many records the index had to read."""
    read = []
    index.rows(run, lambda done, of: read.append(of))
    return len(read)


def test_the_index_has_the_rows_of_the_records_in_the_order_of_the_manifest(run):
    same(run)
    assert (run / "index.parquet").exists()
    same(run)
    assert read_anew(run) == 0
    assert list(index.rows(run)["strategy"]) == ["z3", "z0", "z1", "z1", "z2", "z0"]
    assert list(index.rows(run)["repeat"]) == [0, 0, 0, 1, 0, 0]


def test_a_new_record_is_read_and_no_other(run, records):
    index.rows(run)
    write_record(run, made("z3", repeat=1))
    assert read_anew(run) == 1
    same(run)


def test_a_changed_record_is_read_again(run, records):
    index.rows(run)
    path = record_path(run, records[0].cell_id, 0)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"status": "oom", "reason": "changed by hand"}))
    assert read_anew(run) == 1
    assert index.rows(run)["reason"][0] == "changed by hand"


def test_a_record_of_equal_size_and_another_time_is_read_again(run, records):
    index.rows(run)
    os.utime(record_path(run, records[0].cell_id, 0), ns=(1, 1))
    assert read_anew(run) == 1


def test_a_record_that_has_gone_has_no_row(run, records):
    index.rows(run)
    record_path(run, records[0].cell_id, 0).unlink()
    same(run)
    assert "z3" not in set(index.rows(run)["strategy"])


def test_a_torn_index_is_made_anew(run):
    index.rows(run)
    path = run / "index.parquet"
    path.write_bytes(path.read_bytes()[:100])
    assert read_anew(run) == 6
    same(run)


def test_an_index_that_other_code_made_is_made_anew(run, monkeypatch):
    index.rows(run)
    monkeypatch.setattr(index, "_code", lambda: b"of another release")
    assert read_anew(run) == 6


def test_the_code_that_makes_rows_is_known_whole():
    package = Path(index.__file__).parent
    for name in ("analysis/frame.py", "validity/known_bad.py"):
        used = re.findall(r"^from bench\.([\w.]+) import", (package / name).read_text(), re.MULTILINE)
        assert {f"{module.replace('.', '/')}.py" for module in used} | {name} <= set(index._SOURCES)


def test_a_folder_that_is_only_read_needs_no_index(run, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError("read-only")  # chmod does not stop root

    monkeypatch.setattr(index.pq, "write_table", refuse)
    same(run)
    assert not list(run.glob("index.parquet*"))


def test_rows_of_many_parts_have_one_form(run, monkeypatch):
    monkeypatch.setattr(index, "_AT_ONCE", 1)
    same(run)


def test_a_damaged_record_is_one_error(run, records):
    record_path(run, records[0].cell_id, 0).write_text("{")
    with pytest.raises(StoreError, match="torn or damaged record"):
        index.rows(run)


def test_a_run_without_a_row_is_one_error(tmp_path):
    with pytest.raises(StoreError, match=r"no run there"):
        index.rows(tmp_path)
    write_json(tmp_path / "manifest.json", manifest([]))
    with pytest.raises(StoreError, match="no row there yet"):
        index.rows(tmp_path)


def test_load_gives_one_line_per_metric_with_unit_and_provenance(run):
    data = bench.load(run)
    peak = data[(data["metric"] == "peak_allocated_bytes") & (data["strategy"] == "z3")]
    assert peak[["value", "unit", "provenance", "validity"]].to_dict("records") == [
        {"value": 1000.0, "unit": "B", "provenance": "measured", "validity": "valid"}
    ]
    theory = data[data["metric"] == "theory_model_state_bytes"]
    assert set(theory["provenance"]) == {"theory"}


def test_load_keeps_a_failure_as_a_line_with_its_reason(run):
    data = bench.load(run)
    lines = data[data["strategy"] == "z2"]
    assert set(zip(lines["status"], lines["reason"], strict=True)) == {("oom", "because of this")}
    assert set(lines["metric"]) == {"wall_time_s", "theory_model_state_bytes", "theory_comm_wire_bytes_per_step"}


def test_a_record_without_any_metric_is_one_line():
    (line,) = long(frame([failed("z2", status="skipped", launch=None, theory=None)])).to_dict("records")
    assert (line["status"], line["reason"]) == ("skipped", "because of this")
    assert pd.isna(line["metric"])
    assert pd.isna(line["value"])


def test_every_metric_of_the_frame_is_a_line(records):
    data, lines = frame(records[:1]), long(frame(records[:1]))
    assert set(lines["metric"]) == {name for name in data.columns if is_metric(name) and data[name].notna().all()}
    assert {name for name in lines.columns if not name.startswith("stack_")} <= COLUMNS.keys() | LONG.keys()


def test_several_runs_are_told_apart_by_as_much_of_their_path_as_it_takes(run, tmp_path):
    other = tmp_path / "b" / "a"
    other.parent.mkdir()
    run.rename(tmp_path / "x")
    for place in (tmp_path / "x", other):
        for record in [made("z0"), made("z1")]:
            write_record(place, record) if not record_path(place, record.cell_id, 0).exists() else None
        write_json(place / "manifest.json", manifest([made("z0"), made("z1")]))
    assert run_names([tmp_path / "x", other]) == ["x", "a"]
    assert run_names([tmp_path / "a", other]) == [f"{tmp_path.name}/a", "b/a"]
    assert set(together([tmp_path / "x", other])["run"]) == {"x", "a"}
    assert set(bench.load(tmp_path / "x", other)["run"]) == {"x", "a"}
    with pytest.raises(StoreError, match="named twice"):
        bench.load(other, other)
    with pytest.raises(StoreError, match="needs a run folder"):
        bench.load()
