"""Tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from bench.analysis.tables import Table
from bench.report.inert import inert


def _laid_out(table: Table, columns: Sequence[int]) -> RichTable:
    laid_out = RichTable(title=table.title, title_justify="left")
    for number in columns:
        if table.wraps:
            laid_out.add_column(inert(table.header[number]), overflow="fold")
        else:
            laid_out.add_column(inert(table.header[number]), justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        laid_out.add_row(*(inert(row[number]) for number in columns))
    return laid_out


def _parts(table: Table, console: Console) -> list[RichTable]:
    """Lay a table out; one too wide for the console is cut between its blocks, never inside a number."""
    width = len(table.header)
    if table.wraps:
        return [_laid_out(table, range(width))]
    blocks = [list(range(first, min(first + table.block, width))) for first in range(1, width, table.block)]
    shown: list[list[int]] = []
    for block in blocks:
        wider = [*shown[-1], *block] if shown else [0, *block]
        fits = console.measure(_laid_out(table, wider)).minimum <= console.width
        if shown and fits:
            shown[-1] = wider
        else:
            shown.append([0, *block])
    return [_laid_out(table, columns) for columns in shown]


def print_said(found: Sequence[Table], notes: Sequence[str], console: Console, head: Sequence[str] = ()) -> None:
    """Print what heads the tables, the tables with the sentences below each, and the notes."""

    def say(text: str, style: str | None = None) -> None:
        console.print(inert(text), style=style, highlight=False, markup=False)

    for sentence in head:
        say(f"! {sentence}", "bold yellow")
    group = ""
    for table in found:
        if table.group != group:
            group = table.group
            say(f"\n{group}", "bold")
        for part in _parts(table, console):
            console.print(part)
        for sentence in table.explained:
            say(f"  > {sentence}")
    for note in notes:
        say(f"- {note}")
