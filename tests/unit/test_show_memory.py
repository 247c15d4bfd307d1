import json
from pathlib import Path

from typer.testing import CliRunner

from bench.cli import app
from bench.store import MANIFEST_VERSION

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"


def test_report_memory_reads_a_run_without_points_too(tmp_path):
    """Rows of earlier versions have none; they are named, not passed over."""
    record = json.loads(V1.read_text())
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "scenario": {},
        "scenario_path": "a.yaml",
        "scenario_name": "a",
        "environment": {},
        "cells": [{"cell_id": record["cell_id"], "label": "a cell"}],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{record['cell_id']}-r0.json").write_text(json.dumps(record))
    for options in ([], ["--format", "markdown"]):
        shown = CliRunner().invoke(app, ["report", str(tmp_path), "--memory", *options])
        assert shown.exit_code == 0, shown.output
        assert f"Not decomposed (only storages on CPU are followed one by one): {record['label']}." in shown.output
