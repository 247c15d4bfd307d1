"""All that is said of a run, or of several side by side: tables, answers and notes, whoever lays them out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from bench.analysis import (
    agreement,
    answer,
    by_gpus,
    comparison,
    differences,
    footers,
    imported,
    largest,
    offload,
    tables,
    witnesses,
)
from bench.analysis.answer import Answer
from bench.analysis.frame import frame
from bench.analysis.tables import Table
from bench.errors import StoreError
from bench.index import rows
from bench.loading import run_names, together
from bench.record import Record
from bench.runs import Run, read_run
from bench.store import read_manifest

By = Literal["metric", "gpus"]
# Sentences below tables need the records themselves, which takes milliseconds each; tables need the index alone.
SENTENCES_UP_TO = 2000


@dataclass(frozen=True)
class Said:
    """``head`` stands above the tables: what differs between several runs. ``lines`` is the comparison itself
    (bench.analysis.comparison); of imported rows alone there is none.
    """

    tables: list[Table]
    answers: list[Answer]
    notes: list[str]
    head: list[str] = field(default_factory=list)
    lines: pd.DataFrame | None = None


def _ignore(done: int, of: int) -> None:
    pass


def gather(folders: Sequence[Path], by: By = "metric", on_row: Callable[[int, int], None] = _ignore) -> Said:
    """Return what is said of the runs in ``folders``; of several, they are compared with each other.

    Raises:
        StoreError: a folder is no run or has no row yet, a record is damaged, or the runs have nothing to compare.
    """
    if len(folders) > 1:
        return _of_several(folders, by, on_row)
    if num_records(folders[0]) > SENTENCES_UP_TO:
        return _of_many(folders[0], by, on_row)
    return of_run(read_run(folders[0]), by)


def num_records(folder: Path) -> int:
    """Return how many record files a run folder holds."""
    return sum(1 for _ in (folder / "records").glob("*.json"))


def batch_key(manifests: Sequence[dict[str, Any]]) -> str:
    """Return what stays equal across GPU counts besides the micro batch."""
    fixed = all("train_batch_size" in manifest["scenario"]["matrix"] for manifest in manifests)
    return "train_batch_size" if fixed else "gradient_accumulation_steps"


def _compared(lines: pd.DataFrame, by: By, records: Sequence[Record] = ()) -> list[Table]:
    if by == "gpus":
        return by_gpus.tables(lines)
    return tables.tables(lines, records) + largest.tables(lines)


def _missing(manifest: dict[str, Any], data: pd.DataFrame) -> list[str]:
    # Manifests of earlier releases have only cells that are repeated alike.
    expected = sum(cell.get("repeats", manifest["scenario"]["repeat"]) for cell in manifest["cells"])
    return [f"{expected - len(data)} of {expected} rows are not there yet."] if len(data) < expected else []


def _notes(data: pd.DataFrame, manifest: dict[str, Any], by: By) -> list[str]:
    said = _missing(manifest, data) + ([by_gpus.NOTE] if by == "gpus" else []) + largest.notes(data)
    return said + footers.footers(data, manifest["scenario"]["zero_optimization"])


def of_run(run: Run, by: By = "metric") -> Said:
    """Return what is said of one run, with the sentences that explain its rows."""
    rows_, notes_ = imported.table(run.imported), imported.notes(run.imported)
    if run.manifest is None:
        return Said(rows_, [], notes_)
    data = frame(run.records)
    lines = comparison.comparison(data, batch_key([run.manifest]))
    beside, kept = agreement.agreement(run.records), offload.offload(run.records)
    notes = _notes(data, run.manifest, by) + witnesses.witnesses(run.records)
    notes += ([offload.NOTE] if kept else []) + ([agreement.NOTE] if beside else [])
    found = _compared(lines, by, run.records) + kept + beside + rows_
    return Said(found, answer.answers(lines), notes + notes_, lines=lines)


def _of_many(folder: Path, by: By, on_row: Callable[[int, int], None]) -> Said:
    manifest, data = read_manifest(folder), rows(folder, on_row)
    lines = comparison.comparison(data, batch_key([manifest]))
    notes = [
        f"Above {SENTENCES_UP_TO:,} rows the sentences that explain rows, and the tables of offload and of emulated "
        "beside measured rows, are left out."
    ]
    return Said(_compared(lines, by), answer.answers(lines), notes + _notes(data, manifest, by), lines=lines)


def _of_several(folders: Sequence[Path], by: By, on_row: Callable[[int, int], None]) -> Said:
    names, manifests = run_names(folders), [read_manifest(folder) for folder in folders]
    data = together(folders, on_row)
    if why := differences.incomparable(data):
        raise StoreError(
            f"{', '.join(map(str, folders))}: the runs have no row to compare: {why}; report each by itself"
        )
    lines = comparison.comparison(data, batch_key(manifests))
    head = differences.differences(data, dict(zip(names, manifests, strict=True)))
    for name, manifest in zip(names, manifests, strict=True):
        head += [f"{name}: {line}" for line in _missing(manifest, data[data["run"] == name])]
    notes = ([by_gpus.NOTE] if by == "gpus" else []) + largest.notes(data)
    set_in = [manifest["scenario"]["zero_optimization"] for manifest in manifests]
    # Where runs differ in these, the head says so.
    notes += footers.footers(data, set_in[0] if all(each == set_in[0] for each in set_in) else {})
    return Said(_compared(lines, by), [], notes, head, lines)
