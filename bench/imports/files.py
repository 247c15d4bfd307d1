"""``zerostage run import``: from files and folders to imported rows in a run folder."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.errors import ImportedFileError
from bench.imports import autotuner
from bench.imports.detect import decoded, recognised
from bench.imports.reading import Reading
from bench.imports.row import ImportedRow
from bench.record import verdict
from bench.store import write_imported

LARGEST_BYTES = 2**28
LONGEST_REASON = 500


def rows(path: Path) -> list[ImportedRow]:
    """Return a row for each run that a file tells of; none where a file beside it tells of the same run.

    Raises:
        ImportedFileError: it cannot be read, or is none of the accepted files.
    """
    try:
        content = _content(path)
        readings = recognised(decoded(content), lambda name: _beside(path, name))
    except ImportedFileError as error:
        raise ImportedFileError(f"{path}: {error}") from None
    return [_row(path.name, content, reading) for reading in readings]


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ImportedFileError(f"cannot read ({error.strerror})") from None
    if len(content) > LARGEST_BYTES:
        raise ImportedFileError(f"larger than {LARGEST_BYTES / 2**20:g} MiB; cut the log to the part that counts")
    return content


def _beside(path: Path, name: str) -> str:
    try:
        return decoded(_content(path.with_name(name)))
    except ImportedFileError:
        return ""


def _row(source: str, content: bytes, reading: Reading) -> ImportedRow:
    identity = content if reading.identity is None else reading.identity.encode(errors="replace")
    findings = list(dict.fromkeys(reading.findings))
    return ImportedRow(
        row_id=hashlib.sha256(identity).hexdigest()[:12],
        source=source.encode(errors="replace").decode(),
        sha256=hashlib.sha256(content).hexdigest(),
        format=reading.format,
        imported_at=datetime.now(UTC).isoformat(timespec="seconds"),
        status=reading.status,
        reason=reading.reason and reading.reason[:LONGEST_REASON],
        validity=verdict(findings) if findings else "unchecked",
        findings=findings,
        settings=reading.settings,
        as_given=reading.as_given,
    )


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that may be text; weights lie beside results.

    The logs of an autotuner's experiment are read with it, as what they tell of is one run.
    """
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            of_experiment = path.name in autotuner.LOGS and path.with_name("exp.json").exists()
            if path.is_file() and not of_experiment:
                with path.open("rb") as stream:
                    start = stream.read(4096)
                if b"\0" not in start or start.startswith((b"\xff\xfe", b"\xfe\xff")):
                    yield path


def _found(path: Path) -> tuple[list[ImportedRow], list[str]]:
    """Return the rows of a file, or of all files below a folder, and what is wrong with a file that was named."""
    if not path.is_dir():
        try:
            found = rows(path)
        except ImportedFileError as error:
            return [], [str(error)]
        return found, [] if found else [f"{path}: describes the run of the metrics.json beside it; name that file"]
    below: list[ImportedRow] = []
    for file in _below(path):
        try:
            below += rows(file)
        except ImportedFileError:  # a folder holds other files too
            continue
    return below, [] if below else [f"{path}: no file below it is one that can be imported; see docs/imports.md"]


def import_files(paths: Iterable[Path], run: Path) -> tuple[int, int]:
    """Import files, and what is recognised below folders, into ``run``; return how many rows are new and were there.

    A run that is there already, known by its content, gets no second row.

    Raises:
        ImportedFileError: some of the files are none of the accepted ones; the rows of the others are kept.
        StoreError: the run folder cannot be written to.
    """
    found, wrong = [], []
    for path in paths:
        read, refused = _found(path)
        found += read
        wrong += refused
    unique = {row.row_id: row for row in reversed(found)}
    new = sum(write_imported(run, row) for row in unique.values())
    if wrong:
        kept = f"\n{len(unique)} other rows are in {run}" if unique else ""
        raise ImportedFileError("\n".join(wrong) + kept)
    return new, len(unique) - new
