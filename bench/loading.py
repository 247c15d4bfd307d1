"""Rows of one or several runs as frames."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

import pandas as pd

from bench.analysis.long import long
from bench.errors import StoreError
from bench.index import rows


def together(folders: Sequence[Path], on_row: Callable[[int, int], None] = lambda done, of: None) -> pd.DataFrame:
    """Return the rows of all ``folders``, a row per record; of several, told apart by ``run``.

    A run is called by its folder's name, with as many folders above it as it takes to tell the runs apart.

    Raises:
        StoreError: a folder is no run, two are the same, or a record is damaged.
    """
    if len(folders) == 1:
        return rows(folders[0], on_row)
    names = run_names(folders)
    return pd.concat([rows(f, on_row).assign(run=n) for f, n in zip(folders, names, strict=True)], ignore_index=True)


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a short name for each run folder, no two alike.

    Raises:
        StoreError: two of them are the same folder.
    """
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise StoreError(f"{folders[0]}: a run folder is named twice; name different runs to compare them")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def load(runs: Sequence[str | PathLike[str]]) -> pd.DataFrame:
    """Return the metrics of ``runs``, a line each (bench.analysis.long)."""
    if not runs:
        raise StoreError("bench.load needs a run folder, as bench.load('results/runs/smoke')")
    return long(together([Path(run) for run in runs]))
