"""100,000 records: what making their index costs, and what tables from it cost, in a process of its own.

``aggregated_s``: from nothing imported to the tables; ``written_s``: tables, answers and notes again, as Markdown.

    python -m pytest tests/benchmarks/test_many_rows.py --benchmark-columns=min,rounds -s

ROWS=10000 in the environment makes fewer.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bench.record import parse_record
from bench.store import record_name

RECORD = Path(__file__).parents[1] / "data" / "records" / "v3-measured.json"
ROWS = int(os.environ.get("ROWS", "100000"))
STRATEGIES, COUNTS, REPEATS = ("ddp", "z0", "z1", "z2", "z3"), (1, 2, 4, 8, 16), 4

# In a process of its own, so that its memory is that of the report alone.
REPORT = """
import resource, sys, time
from pathlib import Path
start = time.perf_counter()
from bench.analysis import comparison, tables
from bench.index import rows
lines = comparison.comparison(rows(Path(sys.argv[1])), "gradient_accumulation_steps")
found = tables.tables(lines)
aggregated_s = time.perf_counter() - start
from bench.report.gather import gather
start = time.perf_counter()
said = gather([Path(sys.argv[1])])
text = tables.markdown(said.tables, said.notes)
written_s = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(aggregated_s, written_s, len(lines), len(found), len(text), peak)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of ``ROWS`` records: as many sequence lengths as it takes, strategies, GPU counts, launches."""
    folder = tmp_path_factory.mktemp("many") / "many"
    (folder / "records").mkdir(parents=True)
    base = parse_record(RECORD.read_text(), str(RECORD))
    data, cells = base.model_dump(mode="json"), []
    lengths = range(16, 16 + ROWS // (REPEATS * len(STRATEGIES) * len(COUNTS)))
    for seq_length, strategy, world_size in itertools.product(lengths, STRATEGIES, COUNTS):
        changes = {"seq_length": seq_length, "strategy": strategy, "world_size": world_size}
        cell = base.cell.model_copy(update=changes)
        new = {"cell": cell.model_dump(mode="json"), "cell_id": cell.cell_id, "label": cell.label}
        new["train_batch_size"] = cell.train_batch_size
        cells.append({"cell_id": cell.cell_id, "label": cell.label, "repeats": REPEATS})
        for repeat in range(REPEATS):
            path = folder / "records" / f"{record_name(cell.cell_id, repeat)}.json"
            path.write_text(json.dumps(data | new | {"repeat": repeat}))
    manifest = {
        "manifest_version": 1,
        "scenario": {"repeat": REPEATS, "matrix": {}, "zero_optimization": {}},
        "scenario_path": "many.yaml",
        "scenario_name": "many",
        "cells": cells,
        "environment": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_the_index_is_made(benchmark, run):
    argv = [sys.executable, "-c", "import sys; from pathlib import Path; from bench.index import rows; "]
    argv[-1] += "assert len(rows(Path(sys.argv[1]))) > 0"
    benchmark.pedantic(subprocess.run, args=([*argv, str(run)],), kwargs={"check": True}, rounds=1)
    benchmark.extra_info["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    benchmark.extra_info["index_bytes"] = (run / "index.parquet").stat().st_size
    print("\n", benchmark.extra_info)


def test_tables_are_made_of_the_index(benchmark, run):
    def report():
        done = subprocess.run([sys.executable, "-c", REPORT, str(run)], check=True, capture_output=True, text=True)
        return done.stdout.split()

    names = ("aggregated_s", "written_s", "cells", "tables", "characters", "peak_rss_bytes")
    benchmark.extra_info |= dict(zip(names, benchmark.pedantic(report, rounds=3), strict=True))
    print("\n", benchmark.extra_info)
