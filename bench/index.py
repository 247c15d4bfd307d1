"""RUN/index.parquet: the tidy frame of a run beside its records, so that many rows are read at once.

The JSON records stay the source of truth. A row of the index stands for one file of one size and time, and is made
again when either has changed; all are when the code that makes rows of records has. A folder that cannot be written
to is read without.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bench.analysis.frame import frame, tidy
from bench.errors import StoreError
from bench.runs import cell_key
from bench.store import read_manifest, read_record
from bench.validity.known_bad import judged_again

_FILE = ["file", "mtime_ns", "num_bytes"]  # what a row stands for; no columns of the frame
_SOURCES = (
    *("analysis/frame.py", "analysis/columns.py", "record.py", "cell.py", "json_text.py"),
    *("validity/known_bad.py", "validity/known_bad.yaml", "zero/stages.py", "zero/defaults.py"),
)
_AT_ONCE = 1000  # records held while rows are made of them


@cache
def _code() -> bytes:
    """Return what stands for the code and data that rows depend on."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest().encode()


def _files(folder: Path) -> pd.DataFrame:
    """Return name, time and size of every record file, by name."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder / "records") as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                status = entry.stat()
                found.append((entry.name, status.st_mtime_ns, status.st_size))
    return pd.DataFrame(sorted(found), columns=pd.Index(_FILE))


def _indexed(path: Path) -> pd.DataFrame | None:
    """Return what the index holds; ``None`` where there is none, a torn one, or one that other code made."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        return None
    return table.to_pandas() if (table.schema.metadata or {}).get(b"zerostage") == _code() else None


def _made(folder: Path, names: list[str], on_row: Callable[[int, int], None]) -> Iterator[pd.DataFrame]:
    """Make the rows of records anew, some at a time."""
    for first in range(0, len(names), _AT_ONCE):
        records = []
        for number, name in enumerate(names[first : first + _AT_ONCE], start=first + 1):
            records.append(judged_again(read_record(folder / "records" / name)))
            on_row(number, len(names))
        yield frame(records)


def _write(path: Path, data: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(data, preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"zerostage": _code()})
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        pq.write_table(table, part, compression="zstd")
        part.replace(path)
    except OSError:  # a folder that is only read
        part.unlink(missing_ok=True)


def rows(folder: Path, on_row: Callable[[int, int], None] = lambda done, of: None) -> pd.DataFrame:
    """Return the tidy frame of a run: a row per record of the cells in its manifest, in its order.

    Each record that the index has not is read, and ``on_row`` told how many of how many are done.

    Raises:
        StoreError: the folder is no run, has no row yet, or a record is damaged.
    """
    manifest = read_manifest(folder)
    found, path = _files(folder), folder / "index.parquet"
    old = _indexed(path)
    known = found.iloc[:0] if old is None else found.merge(old[_FILE], on=_FILE)
    new = found[~found["file"].isin(known["file"])]
    if old is None or len(new) or len(known) < len(old):
        parts = [] if old is None else [old.set_index("file").loc[known["file"]].drop(columns=_FILE[1:])]
        parts = [part for part in [*parts, *_made(folder, list(new["file"]), on_row)] if len(part)]
        if not parts:
            raise StoreError(f"{folder}: no row there yet; go on with 'zerostage run {manifest['scenario_path']}'")
        files = pd.concat([known, new], ignore_index=True)
        old = pd.concat([files, tidy(pd.concat(parts, ignore_index=True))], axis=1)
        _write(path, old)
    order = {cell_key(cell): number for number, cell in enumerate(manifest["cells"])}
    stacks = old["requested_stack"].astype("object").where(old["requested_stack"].notna(), None)
    place = pd.Series([order.get(key) for key in zip(old["cell_id"], stacks, strict=True)], index=old.index)
    listed = old.assign(place=place)[place.notna()].sort_values(["place", "repeat"], kind="stable")
    if listed.empty:
        raise StoreError(f"{folder}: no row there yet; go on with 'zerostage run {manifest['scenario_path']}'")
    return tidy(listed.drop(columns=[*_FILE, "place"]).reset_index(drop=True))
