"""Every strategy at its largest batch that fits: a table of its own, for its rows differ in their global batch.

What stands beside `bench.analysis.tables`, where all rows of one GPU count have one global batch. A strategy that needs
less memory gets a larger batch here, so the order of the strategies may be another.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pandas as pd

from bench.analysis.frame import CONTROLS
from bench.analysis.stacks import stack_names
from bench.analysis.tables import Table, how_it_trains, in_order, params_text, presentable
from bench.analysis.units import mib
from bench.largest import size_text

_KEYS = [name for name in CONTROLS if name != "train_micro_batch_size_per_gpu"]
_GROUP = [*_KEYS, "gradient_accumulation_steps", "batch_budget_bytes", "batch_at_most"]

NOTE = (
    "Two comparisons, never in one table: the same global batch holds the work of a step equal; the largest batch that "
    "fits gives each strategy the largest micro batch for the same memory, so rows differ in their global batch, and "
    "peak memory is near the budget by intent. Compare tokens/s there, not ms; 'per token' is bytes sent per trained "
    "token. 'fails at' is the micro batch above the one found, tried and refused, '> limit' where the "
    "search ended before one was refused; 'in' is where its memory was highest, or ran out (docs/largest-batch.md)."
)


def _number(rows: pd.DataFrame, column: str, write: Callable[[float], str]) -> str:
    value = rows[column].median() if column in rows else None
    return "" if value is None or pd.isna(value) else write(float(value))


def _mark(rows: pd.DataFrame) -> str:
    return "?" if rows["figures_suspect"].any() else "†" if "suspect" in set(rows["validity"]) else ""


def _late(rows: pd.DataFrame) -> str:
    column = "timing_suspect_reasons"
    return "?" if column in rows and rows[column].fillna("").astype(bool).any() else ""


def _row(name: str, n: int, rows: pd.DataFrame) -> list[str]:
    shown, first = presentable(rows), rows.iloc[0]
    if shown.empty:
        words = "/".join(dict.fromkeys(rows["status"].replace("completed", "invalid")))
        found = [words, ""] if words != "oom" else ["none fits", ""]
    else:
        found = [f"{shown[c].iloc[0]:,.0f}" for c in ("train_micro_batch_size_per_gpu", "train_batch_size")]
    mark = "" if shown.empty else _mark(shown)
    throughput = _number(shown, "tokens_per_second_per_gpu", lambda value: f"{value:,.0f}")
    peak = _number(shown, "peak_allocated_bytes", mib)
    sent = _number(shown, "comm_wire_bytes_per_step", mib)
    per_token = _number(shown, "sent_bytes_per_token", lambda value: f"{value:,.0f} B")
    fails = first["batch_fails_at"]
    ended = "" if shown.empty else f"> {first['batch_at_most']:,.0f}"
    return [
        name,
        f"{n}",
        *found,
        throughput and throughput + (_late(shown) or mark),
        peak and peak + mark,
        sent and sent + mark,
        per_token,
        ended if pd.isna(fails) else f"{fails:,.0f}",
        first["batch_fails_in"] or "",
    ]


def _heading(values: dict[str, Any], group: pd.DataFrame) -> str:
    budget = values["batch_budget_bytes"]
    parts = [
        f"{values['model']}{params_text(group)}",
        "every strategy at its largest batch that fits into "
        + ("the GPU's memory" if pd.isna(budget) else f"{size_text(budget)} per GPU"),
        f"GAS {values['gradient_accumulation_steps']}",
        f"seq {values['seq_length']}",
        values["dtype"],
        f"{values['data']} data",
    ]
    return ", ".join(parts + how_it_trains(values, group))


def tables(frame: pd.DataFrame) -> list[Table]:
    """Return the tables of the rows whose batch was searched for; none where there are none."""
    rows = frame[frame["largest_batch"]]
    if rows.empty:
        return []
    found = []
    for values, group in rows.groupby(_GROUP, sort=False, dropna=False):
        names = stack_names(group)
        stacked = bool(group["requested_stack"].notna().any())
        body = []
        for n in sorted(group["world_size"].unique()):
            at = group[group["world_size"] == n]
            for strategy in in_order(at["strategy"]):
                for stack in names[at.index][at["strategy"] == strategy].unique():
                    cell = at[(at["strategy"] == strategy) & (names[at.index] == stack)]
                    body.append(_row(f"{strategy} {stack}" if stacked else strategy, n, cell))
        header = ["strategy, stack" if stacked else "strategy", "N", "micro batch", "global batch"]
        header += ["tokens/s per GPU", "peak per GPU", "sent per step", "per token", "fails at", "in"]
        title = _heading(dict(zip(_GROUP, values, strict=True)), group)
        found.append(Table(title, "Largest batch that fits (not the same global batch)", header, body))
    return found


def _values(rows: pd.DataFrame, column: str) -> dict[str, float]:
    """Return the median of each strategy, without those that have no number or one not to be shown."""
    if column not in rows:
        return {}
    medians = presentable(rows).groupby("strategy", sort=False)[column].median().dropna()
    return {str(name): float(value) for name, value in medians.items()}


# What is ordered, in words, its column, and whether more is better.
_ORDERED = (
    ("tokens/s per GPU", "tokens_per_second_per_gpu", True),
    ("bytes sent per token", "sent_bytes_per_token", False),
)


def notes(frame: pd.DataFrame) -> list[str]:
    """Return what the two comparisons are, and where they put the strategies in another order."""
    searched = frame[frame["largest_batch"]]
    if searched.empty:
        return []
    lines = [NOTE]
    keys = [*_KEYS, "world_size", "requested_stack"]
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        where = dict(zip(keys, values, strict=True))
        largest = group[group["largest_batch"]]
        for _, same in group[~group["largest_batch"]].groupby("train_batch_size", sort=False):
            lines += [line for ordered in _ORDERED if (line := _differs(ordered, where, same, largest))]
    return lines


def _differs(
    ordered: tuple[str, str, bool], where: dict[str, Any], same: pd.DataFrame, largest: pd.DataFrame
) -> str | None:
    """Return in words how two orders of the strategies that both have differ; ``None`` where they do not."""
    words, column, most_first = ordered
    here, there = _values(same, column), _values(largest, column)
    both = [name for name in here if name in there]
    # Equal numbers stand in no order that another could contradict.
    if not any((here[a] - here[b]) * (there[a] - there[b]) < 0 for a, b in combinations(both, 2)):
        return None
    first, second = (", ".join(sorted(both, key=values.__getitem__, reverse=most_first)) for values in (here, there))
    timed, rows = column == "tokens_per_second_per_gpu", pd.concat([same, largest])
    doubts = ["some times are suspect"] if timed and _late(rows) else []
    doubts += ["below 3 launches: not separated"] if timed and rows.groupby("cell_id").size().min() < 3 else []
    return (
        f"The order of the strategies by {words} is another, {where['model']} at N={where['world_size']}"
        f"{' emulated' if where['emulation'] else ''}: {first} at the same global batch "
        f"{same['train_batch_size'].iloc[0]}; {second} at the largest batch that fits"
        f"{' (' + '; '.join(doubts) + ')' if doubts else ''}."
    )
