"""Every strategy at its largest batch that fits: a table of its own, for its rows differ in their global batch.

What stands beside `bench.analysis.tables`, where all rows of one GPU count have one global batch. A strategy that needs
less memory gets a larger batch here, so the order of the strategies may be another.
"""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pandas as pd

from bench.analysis.cells import presentable
from bench.analysis.comparison import LARGEST
from bench.analysis.frame import CONTROLS
from bench.analysis.tables import Table, first_column, groups, names_of, number
from bench.analysis.titles import Line
from bench.analysis.units import mib

_KEYS = [
    *(name for name in CONTROLS if name != "train_micro_batch_size_per_gpu"),
    *("gradient_accumulation_steps", "world_size", "requested_stack"),
]
# What rows of one view must share besides: then the median of a strategy is of one cell.
_SAME = ["train_micro_batch_size_per_gpu"]
_LARGEST = ["batch_budget_bytes", "batch_at_most"]

NOTE = (
    "Two comparisons, never in one table: the same global batch holds the work of a step equal; the largest batch that "
    "fits gives each strategy the largest micro batch for the same memory, so rows differ in their global batch, and "
    "peak memory is near the budget by intent. Compare tokens/s there, not ms; 'per token' is bytes sent per trained "
    "token. 'fails at' is the micro batch above the one found, tried and refused, '> limit' where the "
    "search ended before one was refused; 'in' is where its memory was highest, or ran out (docs/largest-batch.md)."
)


def _row(line: Line) -> list[str]:
    shown = line["launches"] > 0
    if shown:
        found = [f"{line[c]:,.0f}" for c in ("train_micro_batch_size_per_gpu", "train_batch_size")]
    else:
        found = ["none fits" if line["outcome"] == "oom" else line["outcome"], ""]
    mark = "?" if line["figures_suspect"] else "†" if line["training_suspect"] else ""
    texts = {}
    for column, write in _WRITTEN.items():
        value = number(line, column)
        texts[column] = "" if value is None else write(value)
    throughput, peak, sent, per_token = texts.values()
    fails = number(line, "batch_fails_at")
    ended = f"> {line['batch_at_most']:,.0f}" if shown else ""
    return [
        f"{line['strategy']} {line['variant']}".strip(),
        f"{line['world_size']}",
        *found,
        throughput and throughput + ("?" if line["times_suspect"] else mark),
        peak and peak + mark,
        sent and sent + mark,
        per_token,
        ended if fails is None else f"{fails:,.0f}",
        "" if pd.isna(line["batch_fails_in"]) else line["batch_fails_in"],
    ]


_WRITTEN: dict[str, Callable[[float], str]] = {
    "tokens_per_second_per_gpu": lambda value: f"{value:,.0f}",
    "peak_allocated_bytes": mib,
    "comm_wire_bytes_per_step": mib,
    "sent_bytes_per_token": lambda value: f"{value:,.0f} B",
}


def tables(lines: pd.DataFrame) -> list[Table]:
    """Return the tables of the cells whose batch was searched for; none where there are none.

    ``lines`` are those of bench.analysis.comparison.
    """
    found = []
    for group in groups(lines, LARGEST):
        at = {(line["world_size"], line["strategy"], line["variant"]): line for line in group}
        counts = sorted({line["world_size"] for line in group})
        body = [_row(at[n, *name]) for n in counts for name in names_of(group) if (n, *name) in at]
        header = [first_column(group), "N", "micro batch", "global batch"]
        header += ["tokens/s per GPU", "peak per GPU", "sent per step", "per token", "fails at", "in"]
        found.append(Table(group[0]["group"], "Largest batch that fits (not the same global batch)", header, body))
    return found


def _late(rows: pd.DataFrame) -> bool:
    column = "timing_suspect_reasons"
    return column in rows and bool(rows[column].fillna("").astype(bool).any())


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
    keys = [*_KEYS, *(["run"] if "run" in frame else [])]
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        where = dict(zip(keys, values, strict=True))
        one, other = group[~group["largest_batch"]], group[group["largest_batch"]]
        for (_, same), (_, largest) in product(one.groupby(_SAME), other.groupby(_LARGEST, dropna=False)):
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
    launches = presentable(rows).groupby("cell_id").size().min()
    doubts += ["below 3 launches: not separated"] if timed and launches < 3 else []
    place = f"N={where['world_size']}, GAS {where['gradient_accumulation_steps']}"
    of = [where[name] for name in ("requested_stack", "run") if not pd.isna(where.get(name))]
    return (
        f"The order of the strategies by {words} is another, {where['model']} at {', '.join([place, *of])}"
        f"{' emulated' if where['emulation'] else ''}: {first} at the same global batch "
        f"{same['train_batch_size'].iloc[0]}; {second} at the largest batch that fits"
        f"{' (' + '; '.join(doubts) + ')' if doubts else ''}."
    )
