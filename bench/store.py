"""results/: one folder per run, one immutable JSON file per record, everything written atomically.

RUN/manifest.json            the scenario, its cells, the environment
RUN/records/<cell_id>[-<stack>]-r<repeat>.json
RUN/index.parquet            the same rows as one table (bench.index), made anew from the records when they change
RUN/logs/<cell_id>[-<stack>]-r<repeat>.log   beside it, of a row that could not be judged, .result.json
RUN/traces/<cell_id>[-<stack>]-r<repeat>.json.gz   of an emulated row: what its last counted step ran
RUN/imported/<row_id>.json   what a file from elsewhere says (bench.imports), never among the records
RUN/searches/<job>/          what an unfinished search for the largest batch has found (bench.search)
RUN/superseded/<time>/       what a fresh run put aside; nothing is deleted
"""

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import json_text
from bench.errors import StoreError
from bench.imports.row import ImportedRow, parse_row
from bench.record import Record, parse_record
from bench.stacks import file_part

MANIFEST_VERSION = 1


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` to ``path`` whole or not at all, surviving a crash of the machine.

    Raises:
        StoreError: the folder cannot be written to.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot write ({error.strerror}); choose a folder with --results") from None


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run folder; the lock falls when this process ends, however it ends.

    Raises:
        StoreError: another runner holds it, or the folder cannot be written to.
    """
    import fcntl

    path = run / "lock"
    try:
        run.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+")
    except OSError as error:
        raise StoreError(f"{run}: cannot write ({error.strerror}); choose a folder with --results") from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            raise StoreError(
                f"{run}: another zerostage run (process {stream.read().strip() or 'unknown'}) is writing there; "
                "wait for it, or choose another folder with --results"
            ) from None
        with contextlib.suppress(OSError):  # the number only helps the message above
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
        yield


def record_name(cell_id: str, repeat: int, stack: str | None = None) -> str:
    """Return the stem that a record, its log and its work folder share."""
    return f"{row_name(cell_id, stack)}-r{repeat}"


def row_name(cell_id: str, stack: str | None) -> str:
    """Return what the repeats of a cell in a stack have in common: ``<cell_id>``, ``<cell_id>-deepspeed-0.17.5``."""
    return f"{cell_id}-{file_part(stack)}" if stack else cell_id


def record_path(run: Path, cell_id: str, repeat: int, stack: str | None = None) -> Path:
    """Return where the record of a cell, repeat and stack lies."""
    return run / "records" / f"{record_name(cell_id, repeat, stack)}.json"


def write_record(run: Path, record: Record) -> None:
    """Add a record; an existing one is never overwritten."""
    path = record_path(run, record.cell_id, record.repeat, record.requested_stack)
    if path.exists():
        raise FileExistsError(path)
    write_json(path, record.model_dump(mode="json"))


def read_records(run: Path) -> list[Record]:
    """Read all records of a run folder, in file name order.

    Raises:
        StoreError: one of them is damaged, or of a newer schema.
    """
    return [read_record(path) for path in sorted((run / "records").glob("*.json"))]


def read_record(path: Path) -> Record:
    """Read one record.

    Raises:
        StoreError: it is damaged, of a newer schema, or the file has another record's name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot read the record: {error}") from None
    record = parse_record(text, str(path))
    if path.stem != (name := record_name(record.cell_id, record.repeat, record.requested_stack)):
        raise StoreError(f"{path}: a copy of record {name}; move it away")
    return record


def imported_path(run: Path, row_id: str) -> Path:
    """Return where an imported row lies."""
    return run / "imported" / f"{row_id}.json"


def write_imported(run: Path, row: ImportedRow) -> bool:
    """Add an imported row, and return whether it was new; an existing one is never overwritten."""
    path = imported_path(run, row.row_id)
    if new := not path.exists():
        write_json(path, row.model_dump(mode="json"))
    return new


def read_imported(run: Path) -> list[ImportedRow]:
    """Read all imported rows of a run folder, in the order of their sources' names.

    Raises:
        StoreError: one of them is damaged, or of a newer schema.
    """
    rows = []
    for path in sorted((run / "imported").glob("*.json")):
        try:
            rows.append(parse_row(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{path}: cannot read the imported row: {error}") from None
    return sorted(rows, key=lambda row: (row.source, row.row_id))


def read_manifest(run: Path) -> dict[str, Any]:
    """Read the manifest of a run folder.

    Raises:
        StoreError: there is no such folder, or no readable manifest in it.
    """
    path = run / "manifest.json"
    if not path.is_file():
        raise StoreError(f"{run}: no run there (no manifest.json); name a folder that 'zerostage run' made")
    try:
        manifest = json_text.read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot read the manifest: {error}") from None
    if not _is_manifest(manifest):
        raise StoreError(f"{path}: not a manifest that this zerostage reads (manifest_version {MANIFEST_VERSION})")
    found: dict[str, Any] = manifest
    return found


def _is_manifest(data: Any) -> bool:
    """Whether ``data`` has what every reader of a manifest takes for granted."""
    if not isinstance(data, dict) or data.get("manifest_version") != MANIFEST_VERSION:
        return False
    kinds = {"scenario": dict, "scenario_path": str, "scenario_name": str, "cells": list, "environment": dict}
    return all(isinstance(data.get(name), kind) for name, kind in kinds.items()) and all(
        isinstance(cell, dict) and {"cell_id", "label"} <= cell.keys() for cell in data["cells"]
    )


def supersede(run: Path, names: set[str]) -> int:
    """Put records, logs and traces called ``names`` aside under ``superseded/``; return how many records that were."""
    aside = run / "superseded" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    moved = 0
    for folder, suffix in (
        ("records", ".json"),
        ("logs", ".log"),
        ("logs", ".result.json"),
        ("traces", ".json.gz"),
    ):
        for path in sorted((run / folder).glob(f"*{suffix}")):
            if path.name.removesuffix(suffix) in names:
                (aside / folder).mkdir(parents=True, exist_ok=True)
                path.rename(aside / folder / path.name)
                moved += folder == "records"
    return moved
