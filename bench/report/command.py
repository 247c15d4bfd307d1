"""`zerostage report`: what it prints and writes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.analysis import answer, imported, memory, traffic
from bench.analysis.long import long
from bench.analysis.tables import Table, markdown, one_line
from bench.errors import BenchError, StoreError
from bench.imports.row import ImportedRow
from bench.loading import together
from bench.report import files
from bench.report.gather import SENTENCES_UP_TO, Said, gather, num_records
from bench.report.terminal import print_said
from bench.runs import read_measured, read_run, rerun_command
from bench.store import read_imported, read_manifest


@dataclass(frozen=True)
class Wanted:
    """How a report is asked for. ``rows`` is ``None`` where the user named none: a line per cell."""

    form: str
    by: str = "metric"
    rows: str | None = None
    output: Path | None = None


@contextmanager
def _reading() -> Iterator[Progress]:
    """Show on a terminal, by standard error, how far the reading of records is."""
    columns = (TextColumn("reading records"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty()  # elsewhere it would leave an empty line
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        yield progress


def _check(folders: Sequence[Path], wanted: Wanted) -> None:
    """Refuse what does not go together.

    Raises:
        BenchError: it does not; the message says what does.
    """
    machine = wanted.form in ("csv", "json", "parquet")
    if wanted.rows and not machine:
        raise BenchError(f"--rows is of --format csv, json and parquet; {wanted.form} shows the comparison")
    if wanted.by != "metric" and (machine or wanted.form == "html"):
        raise BenchError(f"--by is of --format terminal and markdown; {wanted.form} has every column in one table")
    if wanted.output and wanted.form == "terminal":
        raise BenchError("--output needs a format for files: --format markdown, csv, json, parquet or html")
    if wanted.form == "html" and len(folders) > 1:
        raise BenchError("--format html is a page of one run; name one (of several, --format markdown compares)")
    if wanted.form == "parquet" and wanted.output is None and sys.stdout.isatty():
        raise BenchError("--format parquet is no text for a terminal; name a file with --output")


def report(folders: Sequence[Path], wanted: Wanted, console: Console) -> None:
    """Print or write the report of a run, or of several side by side.

    Raises:
        BenchError: options do not go together, a folder is no run, or a file cannot be written.
    """
    _check(folders, wanted)
    if wanted.form == "html":
        _page(folders[0], wanted.output, console)
        return
    if wanted.form in ("csv", "json", "parquet"):
        _put(_machine(folders, wanted), wanted.output)
        return
    said = _gathered(folders, wanted.by)
    if wanted.form == "markdown":
        head = "".join(f"> **{one_line(sentence)}**\n>\n" for sentence in said.head)
        _put((head + markdown(_all(said), said.notes)).encode(), wanted.output)
        return
    print_said(_all(said), said.notes, console, said.head)
    for folder in folders:
        console.print(f"{folder}", highlight=False, markup=False)


def _all(said: Said) -> list[Table]:
    return [*said.tables, *answer.table(said.answers)]


def _gathered(folders: Sequence[Path], by: str) -> Said:
    with _reading() as progress:
        task = progress.add_task("", total=None, visible=False)
        return gather(
            folders,
            "gpus" if by == "gpus" else "metric",
            lambda done, of: progress.update(task, completed=done, total=of, visible=True),
        )


def _machine(folders: Sequence[Path], wanted: Wanted) -> bytes:
    form: files.Machine = "csv" if wanted.form == "csv" else "json" if wanted.form == "json" else "parquet"
    measured = [folder for folder in folders if (folder / "manifest.json").exists() or not read_imported(folder)]
    rows_of = wanted.rows or ("cells" if measured else "records")
    if rows_of != "records" and not measured:
        raise StoreError(f"{folders[0]}: it holds imported rows alone, which are not compared; take --rows records")
    if rows_of == "cells" and (lines := _gathered(folders, "metric").lines) is not None:
        return files.written(files.cells_of(lines), form)
    data = together(measured) if measured else pd.DataFrame()
    if rows_of == "metrics":
        return files.written(long(data), form)
    rows: list[ImportedRow] = [row for folder in folders for row in read_imported(folder)]
    parts = [part for part in (data, imported.frame(rows)) if len(part)]
    return files.written(pd.concat(parts, ignore_index=True), form)


def _put(content: bytes, output: Path | None) -> None:
    """Write ``content`` to a file, whose path is printed, or to standard output.

    Raises:
        StoreError: the file cannot be written.
    """
    if output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise StoreError(f"{output}: cannot write ({error.strerror}); name another file with --output") from None
    print(output)


def _page(folder: Path, output: Path | None, console: Console) -> None:
    """Write the page of a run; its path is printed.

    Raises:
        StoreError: the run has more rows than a page can hold, or the file cannot be written.
    """
    from bench.report.page import write_page  # with the plots, which take a second to import

    if (count := num_records(folder)) > SENTENCES_UP_TO:
        raise StoreError(f"{folder}: {count:,} rows are too many for a page; take --format csv, json or parquet")
    path = output or folder / "report.html"
    with console.status("drawing"):
        write_page(read_run(folder), path)
    console.print(f"{path}", highlight=False, markup=False, soft_wrap=True)


def show_tables(folder: Path, console: Console) -> None:
    """Print the tables of a run for a terminal."""
    report([folder], Wanted("terminal"), console)


def show_imported(run: Path, new: int, known: int, console: Console) -> None:
    """Print the imported rows of a run folder, and how many of them an import has just added or found there."""
    rows = read_imported(run)
    print_said(imported.table(rows), imported.notes(rows), console)
    console.print(f"{run}", highlight=False, markup=False)
    console.print(f"{new} imported, {known} there already", highlight=False, markup=False)


def show_traffic(run: Path, console: Console | None, *, details: bool) -> None:
    """Print where the bytes of a run went, for a terminal, or as Markdown without a ``console``.

    First a line per row; with ``details`` then each row's operations and why paper and practice differ.
    """
    _, records = read_measured(run)
    found: list[tuple[Table, list[str]]] = [
        (traffic.summary(records), [traffic.verdict_line(records), *traffic.NOTES]),
    ]
    if details:
        counted = [record for record in records if record.comm]
        found += zip(traffic.traffic_tables(records), map(traffic.explanations, counted), strict=True)
    for table, notes in found:
        if console is None:
            sys.stdout.write(markdown([table], notes) + "\n")
        else:
            print_said([table], notes, console)


def show_memory(run: Path, console: Console | None) -> None:
    """Print what holds each row's memory, beside what is expected: for a terminal, or without one as Markdown."""
    _, records = read_measured(run)
    found, notes = memory.tables(records), memory.notes(records)
    if console is None:
        sys.stdout.write(markdown(found, notes))
    else:
        print_said(found, notes, console)
        console.print(f"{run}", highlight=False, markup=False)


def show_rerun(run: Path, name: str) -> None:
    """Print the command that measures the cell called ``name`` (id or label) again.

    Raises:
        StoreError: the run has no such cell.
    """
    print(rerun_command(run, read_manifest(run), name))
