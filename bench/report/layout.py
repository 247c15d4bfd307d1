"""Tables as the page lays them out: columns under common headings, rows with links and what they are filtered by."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import get_args

from bench.analysis.tables import Table
from bench.record import Status, Validity

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
    """The cells of one row, the first its name. ``keys`` are what it is filtered by, ``links`` the names of the parts
    of the page that its cells lead to, by column.
    """

    cells: list[str]
    keys: dict[str, str] = field(default_factory=dict)
    links: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Laid:
    """A table of the page. ``wraps``: its cells are words; ``explained``: the sentences below it."""

    title: str
    columns: list[Column]
    lines: list[Line]
    explained: list[str] = field(default_factory=list)
    wraps: bool = False

    def css(self, at: int, cell: str) -> str:
        """Return the classes of ``cell`` in column ``at``: its place, and what became of the row."""
        return " ".join(filter(None, [self.head_css(at), word(cell)]))

    def head_css(self, at: int) -> str:
        """Return the class of the place of column ``at``: ``t`` of text, ``g`` the first under a heading."""
        if self.wraps or at in self._texts:
            return "t"
        return "g" if at in self._firsts else ""

    @cached_property
    def _firsts(self) -> set[int]:
        return {at for _, _, at, _ in self.groups if at}

    @cached_property
    def _texts(self) -> set[int]:
        """The columns, besides the first, that hold words throughout."""
        cells = [[line.cells[number] for line in self.lines] for number in range(len(self.columns))]
        return {
            at
            for at, each in enumerate(cells)
            if at and any(map(_TEXT.match, each)) and not any(map(_NUMBER.match, each))
        }

    @cached_property
    def groups(self) -> list[tuple[str, str, int, int]]:
        """Heading, GPU count, first column and number of columns of each run of neighbours; ``""``: no heading."""
        found, at = [], 0
        for (name, count), columns in groupby(self.columns, key=lambda column: (column.group, column.count)):
            width = len(list(columns))
            found.append((name, count, at, width))
            at += width
        return found


def word(text: str) -> str:
    """Return what became of a row, where a cell of a table says that in place of a number, as the name of a style."""
    found = _WORD.match(text)
    return "" if found is None else found[1] or "w"


def plain(table: Table) -> Laid:
    """Lay ``table`` out. A column called "bytes: paper" and those after it stand under ``bytes``."""
    columns: list[Column] = []
    group = ""
    for name in table.header:
        if ": " in name:
            group, name = name.split(": ", 1)
        columns.append(Column(name, group))
    return Laid(table.title, columns, [Line(row) for row in table.rows], table.explained, table.wraps)


def memory(table: Table) -> Laid:
    """Lay out a table of memory by category and point (bench.analysis.memory); of each point what was counted and
    its difference from what is expected, from which the expected follows.
    """
    triples = range(1, len(table.header), 3)
    heads = [Column(table.header[0])]
    heads += [Column(name, table.header[at]) for at in triples for name in ("counted", "diff")]
    lines = [Line([row[0], *(row[at + more] for at in triples for more in (0, 2))]) for row in table.rows]
    return Laid(table.title, heads, lines)
