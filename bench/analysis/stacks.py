"""Rows of several stacks in one table: how they are called, and what differs between them."""

import pandas as pd

from bench.stacks import INSTALLED, releases


def stack_names(frame: pd.DataFrame) -> pd.Series:
    """Return each row's stack in a word: as requested, or ``installed``."""
    requested = frame["requested_stack"]
    return requested.where(requested.notna(), INSTALLED)


def stack_notes(frame: pd.DataFrame, baseline: str) -> list[str]:
    """Return what a reader must know of the stacks in ``frame``; nothing, where no row asked for one."""
    if not frame["requested_stack"].notna().any():
        return []
    names = stack_names(frame)
    asked = {package for stack in frame["requested_stack"].dropna().unique() for package in releases(stack)}
    equal, unequal = [], []
    for column in (name for name in frame.columns if name.startswith("stack_")):
        package = column.removeprefix("stack_")
        found = frame[column].dropna()
        if found.nunique() == 1:
            equal.append(f"{package} {found.iloc[0]}")
        elif package not in asked and not found.empty:
            versions = [f"{v} ({', '.join(names[rows.index].unique())})" for v, rows in found.groupby(found)]
            unequal.append(f"{package} {' and '.join(versions)}")
    lines = [
        f"Stacks: rows of one table differ in strategy and in the requested stack ({', '.join(names.unique())}), each "
        f"in an isolated environment over the same torch; 'vs {baseline}' is to the {baseline} row of the same stack."
    ]
    if equal:
        lines.append(f"Equal in all measured rows: {', '.join(equal)}.")
    if unequal:
        lines.append(
            f"Not equal beside the requested releases, so a difference may come from it: {'; '.join(unequal)}."
        )
    return lines
