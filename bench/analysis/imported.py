"""Imported rows as one table of their own, and as columns of their own: never in a comparison with measured rows."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.analysis.tables import Table
from bench.imports.row import Given, ImportedRow

GROUP = "Imported (as given)"
NOTE = (
    "Imported rows are what other programs' files say, each by its own clock and counting. They are not measured here, "
    "not converted, and in no other table (docs/imports.md)."
)


def _names(rows: Sequence[ImportedRow]) -> list[str]:
    """Return a name for each row: its source, with the row's id where several rows have one source."""
    sources = [row.source for row in rows]
    named = [row.source if sources.count(row.source) == 1 else f"{row.source} [{row.row_id[:6]}]" for row in rows]
    # A foreign file name must not break a line or a Markdown table.
    return ["".join(c if c.isprintable() and c != "|" else "?" for c in name) for name in named]


def _number(value: int | float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if 1 <= abs(value) < 1e9 else f"{value:.4g}"


def _line(figure: Given) -> list[str]:
    return [figure.name, _number(figure.value), figure.what.replace("|", "/")]


def table(rows: Sequence[ImportedRow]) -> list[Table]:
    """Return the table, a line per figure; none without rows."""
    lines = []
    for name, row in zip(_names(rows), rows, strict=True):
        status = (row.status or "not said") + (" ?" if row.validity == "suspect" else "")
        figures = [_line(figure) for figure in row.as_given] or [["no figure", "", ""]]
        lines += [
            [name, row.format, *figure, status] if first else ["", "", *figure, ""]
            for figure, first in zip(figures, [True] + [False] * len(figures), strict=False)
        ]
    header = ["source", "format", "says", "value", "which is", "status"]
    return [Table(GROUP, "one line per figure, in its own unit", header, lines, wraps=True)] if rows else []


def notes(rows: Sequence[ImportedRow]) -> list[str]:
    """Return what stands below the table: what ran as the files say, the failures, and each known defect once."""
    names = dict(zip((row.row_id for row in rows), _names(rows), strict=True))
    lines = [NOTE] if rows else []
    for row in rows:
        if row.settings:
            settings = ", ".join(f"{key} {value}" for key, value in row.settings.items())
            lines.append(f"{names[row.row_id]} says of its run: {settings}.")
    lines += [f"{row.status or 'not said'}: {row.reason} [{names[row.row_id]}]" for row in rows if row.reason]
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for finding in row.findings:
            mark = "? suspect" if finding.affects == "figures" else "† trains otherwise"
            found.setdefault((mark, finding.text), []).append(names[row.row_id])
    return lines + [f"{mark}: {text} [{', '.join(sources)}]" for (mark, text), sources in found.items()]


def _row(row: ImportedRow) -> dict[str, Any]:
    return {
        "row_id": row.row_id,
        "source": row.source,
        "sha256": row.sha256,
        "format": row.format,
        "imported_at": row.imported_at,
        "status": row.status,
        "reason": row.reason,
        "provenance": row.provenance,
        "validity": row.validity,
        "validity_reasons": "; ".join(f.text for f in row.findings if f.verdict == row.validity),
        **{f"said_{name}": value for name, value in row.settings.items()},
        **{f"as_given_{figure.name}": figure.value for figure in row.as_given},
    }


def frame(rows: Sequence[ImportedRow]) -> pd.DataFrame:
    """Return one row per imported row. Figures are ``as_given_<name>``, settings ``said_<name>``."""
    return pd.DataFrame([_row(row) for row in rows])
