"""A comparison, records or metrics as CSV, JSON or Parquet, for other programs.

Numbers are plain, in the unit of their column (bench.analysis.columns); what is missing is empty, or null.
"""

import json
from io import BytesIO
from typing import Literal

import pandas as pd

from bench import __version__
from bench.analysis.columns import LONG, Column, definition

Machine = Literal["csv", "json", "parquet"]
# What a comparison's line has for the tables alone.
_INSIDE = ["line", "base_line", "group_number", "variant"]


def cells_of(lines: pd.DataFrame) -> pd.DataFrame:
    """Return a comparison (bench.analysis.comparison) as it is written: one line per cell, what names it first."""
    first = [name for name in ("run", "view", "group", "model", "world_size", "strategy", "stack") if name in lines]
    found = lines.drop(columns=[*_INSIDE, *first], errors="ignore")
    return pd.concat([lines[first], found], axis=1)


def _defined(name: str) -> Column | None:
    if name in LONG and name != "provenance":
        return LONG[name]
    try:
        return definition(name)
    except KeyError:  # of an imported row: as its file has it
        return None


def _columns(data: pd.DataFrame) -> dict[str, dict[str, str]]:
    known = {str(name): _defined(str(name)) for name in data.columns}
    return {name: {"unit": column.unit, "meaning": column.meaning} for name, column in known.items() if column}


def written(data: pd.DataFrame, form: Machine) -> bytes:
    """Return ``data`` as a file's content. JSON is ``{"zerostage", "columns": {name: {unit, meaning}}, "rows"}``."""
    if form == "csv":
        return data.to_csv(index=False).encode()
    if form == "parquet":
        stream = BytesIO()
        data.to_parquet(stream, index=False, compression="zstd")
        return stream.getvalue()
    rows = json.loads(data.to_json(orient="records", double_precision=15))
    whole = {"zerostage": __version__, "columns": _columns(data), "rows": rows}
    return (json.dumps(whole, indent=1) + "\n").encode()
