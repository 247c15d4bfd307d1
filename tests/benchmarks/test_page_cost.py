"""What the page of 200 cells costs: time to make it, and its size.

    scripts/test.sh tests/benchmarks/test_page_cost.py -s --benchmark-only --benchmark-json page.json

The run is made of the committed records, measured and emulated, each altered into a hundred cells.
"""

import json
from pathlib import Path

import pytest

from bench.record import parse_record
from bench.report.page import write_page
from bench.runs import read_run
from bench.store import write_json, write_record

RECORDS = Path(__file__).parents[1] / "data" / "records"
LIMIT_BYTES = 3_000_000


def variants(name):
    """Return a hundred records of different cells made from one: 5 strategies x 4 GPU counts x 5 lengths."""
    path = RECORDS / name
    record = parse_record(path.read_text(), str(path))
    for strategy in ("ddp", "z0", "z1", "z2", "z3"):
        for number in range(20):
            size, length = 2 ** (number % 4 + 1), 64 * (number // 4 + 1)
            cell = record.cell.model_copy(update={"strategy": strategy, "world_size": size, "seq_length": length})
            yield record.model_copy(update={"cell": cell, "cell_id": cell.cell_id, "label": cell.label})


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "two-hundred"
    records = [*variants("v3-measured.json"), *variants("v3-emulated.json")]
    for record in records:
        write_record(folder, record)
    cells = [{"cell_id": record.cell_id, "label": record.label, "stack": None, "repeats": 1} for record in records]
    manifest = {
        "manifest_version": 1,
        "scenario": {"matrix": {}, "repeat": 1, "zero_optimization": {}, "description": ""},
        "scenario_path": "two-hundred.yaml",
        "scenario_name": folder.name,
        "cells": cells,
        "environment": {},
    }
    write_json(folder / "manifest.json", manifest)
    return folder


def test_the_page_of_200_cells_is_small_and_soon_made(benchmark, run):
    path = run / "report.html"
    benchmark.pedantic(lambda: write_page(read_run(run), path), rounds=3, warmup_rounds=0)
    size = path.stat().st_size
    benchmark.extra_info |= {"bytes": size, "cells": len(json.loads((run / "manifest.json").read_text())["cells"])}
    print(f"{size:,} bytes, {benchmark.stats.stats.max:.1f} s at most")
    assert size < LIMIT_BYTES
