"""Tables as the page lays them out: columns under common headings, rows with what they can be filtered by."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import get_args

from bench.analysis.tables import Table
from bench.record import Status, Validity

_COUNT = re.compile(r"N=(\d+)")
_NUMBER, _TEXT = re.compile(r"[<>+-]? ?\d"), re.compile(r"[^\W\d]")
_WORD = re.compile(rf"(?:({'|'.join([*get_args(Status), *get_args(Validity)])})|not run|none fits)\b")


@dataclass(frozen=True)
class Column:
    """``group`` is the heading that neighbours share (``N=8``), ``count`` the GPU count where it is one."""

    name: str
    group: str = ""
    count: str = ""


@dataclass(frozen=True)
class Line:
    """The cells of one row, the first its name; by ``keys`` it is filtered. ``part``: the name of the row's part."""

    cells: list[str]
    keys: dict[str, str] = field(default_factory=dict)
    part: str = ""


@dataclass(frozen=True)
class Laid:
    """A table of the page. ``wraps``: its cells are words; ``explained``: the sentences below it."""

    title: str
    columns: list[Column]
    lines: list[Line]
    explained: list[str] = field(default_factory=list)
    wraps: bool = False

    def css(self, at: int, cell: str) -> str:
        """Return the classes of ``cell`` in column ``at``: ``t`` of text, and what became of the row."""
        return " ".join(filter(None, ["t" if self.wraps or at in self._texts else "", word(cell)]))

    def head_css(self, at: int) -> str:
        """Return the class of the heading of column ``at``."""
        return "t" if self.wraps or at in self._texts else ""

    @cached_property
    def _texts(self) -> set[int]:
        """The columns, besides the first, that hold words throughout."""
        cells = [[line.cells[number] for line in self.lines] for number in range(len(self.columns))]
        return {
            at
            for at, each in enumerate(cells)
            if at and any(map(_TEXT.match, each)) and not any(map(_NUMBER.match, each))
        }

    @property
    def groups(self) -> list[tuple[str, str, int, int]]:
        """Heading, GPU count, first column and number of columns of each run of neighbours; ``""``: no heading."""
        found, at = [], 0
        for (name, count), columns in groupby(self.columns, key=lambda column: (column.group, column.count)):
            width = len(list(columns))
            found.append((name, count, at, width))
            at += width
        return found


@dataclass(frozen=True)
class Section:
    """The tables whose rows share the settings that ``title`` names."""

    title: str
    model: str
    tables: list[Laid]


def word(text: str) -> str:
    """Return what became of a row, where a cell of a table says that in place of a number, as the name of a style."""
    found = _WORD.match(text)
    return "" if found is None else found[1] or "w"


def columns(table: Table) -> list[Column]:
    """Return the columns of ``table``. What its flat header says by order becomes a heading above a few columns:
    the GPU count of the columns that follow it, ``bytes`` of "bytes: paper".
    """
    found: list[Column] = []
    group = count = ""
    for name in table.header:
        if number := _COUNT.fullmatch(name):
            group, count = name, number[1]
            name = table.title.split(" (")[0].lower()
        elif ": " in name:
            group, name = name.split(": ", 1)
        found.append(Column(name, group, count))
    return found


def _known(text: str, names: Iterable[str]) -> str:
    """Return the longest of ``names`` that ``text`` begins with, as a word; ``""`` where there is none."""
    fitting = [name for name in names if text == name or text.startswith((f"{name} ", f"{name},"))]
    return max(fitting, key=len, default="")


def laid(table: Table, strategies: Iterable[str] = ()) -> Laid:
    """Lay ``table`` out; its rows are filtered by the strategy that they begin with."""
    known = sorted(set(strategies))
    by_strategy = table.header[0].startswith("strategy")
    lines = [Line(row, {"strategy": _known(row[0], known)} if by_strategy else {}) for row in table.rows]
    return Laid(table.title, columns(table), lines, table.explained, table.wraps)


def sections(tables: Sequence[Table], models: Iterable[str], strategies: Iterable[str]) -> list[Section]:
    """Return the tables under the settings that their rows share, in their order."""
    names, known = sorted(set(models)), sorted(set(strategies))
    return [
        Section(title, _known(title, names), [laid(table, known) for table in group])
        for title, group in groupby(tables, key=lambda table: table.group)
    ]


def memory(table: Table) -> Laid:
    """Lay out a table of memory by category and point (bench.analysis.memory); of each point what was counted and
    its difference from what is expected, from which the expected follows.
    """
    triples = range(1, len(table.header), 3)
    heads = [Column(table.header[0])]
    heads += [Column(name, table.header[at]) for at in triples for name in ("counted", "diff")]
    lines = [Line([row[0], *(row[at + more] for at in triples for more in (0, 2))]) for row in table.rows]
    return Laid(table.title, heads, lines)
