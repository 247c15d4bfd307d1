"""The comparison tables of the page: under the settings that their rows share, each figure linked to its row's part."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.analysis import by_gpus
from bench.analysis.tables import Table
from bench.analysis.titles import plain as plain_lines
from bench.report.cells import Part
from bench.report.gather import Said
from bench.report.layout import Column, Laid, Line, plain

_COUNT = re.compile(r"N=(\d+)\b")
# Where a table has every metric of one GPU count: the heading that its columns stand under, by the first of them.
_HEADINGS = {
    **dict.fromkeys(("ms", "±", "tokens/s per GPU", "MFU"), "speed"),
    **dict.fromkeys(("peak", "reserved", "fits", "host"), "memory"),
    "sent per step": "traffic",
    **dict.fromkeys(("strategy", "n", "validity"), ""),
}
# The part of a row, by its group, name and GPU count.
Places = dict[tuple[str, str, str], str]


@dataclass(frozen=True)
class Section:
    """The tables whose rows share the settings that ``title`` names; ``short`` has those that tell it from others."""

    title: str
    short: str
    model: str
    tables: list[Laid]


def places(said: Said, parts: Sequence[Part]) -> Places:
    """Return where each row of the comparison is told of; a name that two rows have leads nowhere."""
    first: dict[tuple[str, str | None], str] = {}
    for part in parts:
        first.setdefault((part.record.cell_id, part.record.requested_stack), part.id)
    found: dict[tuple[str, str, str], set[str]] = {}
    for line in [] if said.lines is None else plain_lines(said.lines):
        key = (line["group"], f"{line['strategy']} {line['variant']}".strip(), str(line["world_size"]))
        found.setdefault(key, set()).add(first.get((line["cell_id"], line["requested_stack"]), ""))
    return {key: names.pop() for key, names in found.items() if len(names) == 1}


def _known(text: str, names: Iterable[str]) -> str:
    """Return the longest of ``names`` that ``text`` begins with, as a word; ``""`` where there is none."""
    fitting = [name for name in names if text == name or text.startswith((f"{name} ", f"{name},"))]
    return max(fitting, key=len, default="")


def _columns(table: Table) -> list[Column]:
    """Return the columns under their headings: the GPU count of those that follow it, or the kind of metric."""
    found: list[Column] = []
    group = count = ""
    whole = _COUNT.match(table.title)
    for name in table.header:
        if number := _COUNT.fullmatch(name):
            group, count = name, number[1]
            name = table.title.split(" (")[0].lower()
        elif whole:
            group = _HEADINGS.get(name, group)
        found.append(Column(name, group, count))
    return found


def _line(table: Table, columns: list[Column], row: list[str], strategies: Iterable[str], where: Places) -> Line:
    """Return a row with its links: of a row of one GPU count its name, else the first figure of each GPU count."""
    whole = _COUNT.match(table.title)
    count = whole[1] if whole else row[1] if table.header[1] == "N" else ""
    keys = {"strategy": _known(row[0], strategies)} | ({"n": count} if count else {})
    counts = {0: count} if count else {at: columns[at].count for at, name in enumerate(table.header) if _is_count(name)}
    links = {at: where.get((table.group, row[0], n), "") for at, n in counts.items()}
    return Line(row, keys, {at: name for at, name in links.items() if name})


def _is_count(name: str) -> bool:
    return bool(_COUNT.fullmatch(name))


def _laid(table: Table, strategies: Iterable[str], where: Places) -> Laid:
    if not table.header[0].startswith("strategy"):
        return plain(table)
    columns = _columns(table)
    lines = [_line(table, columns, row, strategies, where) for row in table.rows]
    return Laid(table.title, columns, lines, table.explained, table.wraps)


def sections(said: Said, parts: Sequence[Part]) -> list[Section]:
    """Return the tables by the settings that their rows share: first every metric by GPU count, then by metric."""
    cells = [part.record.cell for part in parts]
    models, strategies = {cell.model for cell in cells}, {cell.strategy_name for cell in cells}
    where = places(said, parts)
    by_title: dict[str, list[Laid]] = {}
    for table in [*([] if said.lines is None else by_gpus.tables(said.lines)), *said.tables]:
        by_title.setdefault(table.group, []).append(_laid(table, strategies, where))
    named = {title: _known(title, models) for title in by_title}
    return [Section(title, _short(title, named), named[title], by_title[title]) for title in by_title]


def _short(title: str, models: dict[str, str]) -> str:
    """Return the model of ``title`` and what not all titles with a model say; a title without one is short."""
    if not models[title]:
        return title
    others = [set(other.removeprefix(model).split(", ")) for other, model in models.items() if model]
    telling = title.removeprefix(models[title]).split(", ")[1:]
    return ", ".join([models[title], *(part for part in telling if not all(part in other for other in others))])
