"""The comparison: one line per cell, among those that it may be compared with, beside the base and the best.

Lines of a group are equal in everything but strategy, GPU count, and where these are asked for, stack and run. Two
views, never one: the same global batch, and every strategy at its largest batch that fits.
"""

from collections.abc import Iterable

import pandas as pd

from bench.analysis.cells import cells
from bench.analysis.frame import CONTROLS
from bench.analysis.stacks import stack_names
from bench.analysis.titles import Line, plain, several_runs, title
from bench.zero.stages import strategy_names

BASELINE = "z0"
SAME, LARGEST = "same global batch", "largest batch that fits"
_LARGEST_KEYS = [
    *(name for name in CONTROLS if name != "train_micro_batch_size_per_gpu"),
    *("gradient_accumulation_steps", "batch_budget_bytes", "batch_at_most"),
]
# A ratio's column, its metric, whether less is better, and whether lines of unequal global batch may have it.
_RATIOS = (
    ("step_time", "step_time_s", True, False),
    ("tokens", "tokens_per_second_per_gpu", False, True),
    ("peak", "peak_allocated_bytes", True, True),
    ("sent", "comm_wire_bytes_per_step", True, False),
)


_TIMED = {"step_time_s", "tokens_per_second_per_gpu"}


def in_order(names: Iterable[str]) -> list[str]:
    """Return the strategies of ``names``, each once: stages in their order, files as they come after them."""
    found, known = list(dict.fromkeys(names)), strategy_names()
    # A variant with a key of several values is called "z2+overlap_comm=true".
    place = {name: known.index(base) for name in found if (base := name.split("+")[0]) in known}
    return sorted(found, key=lambda name: place.get(name, len(known)))


def controls(frame: pd.DataFrame) -> list[str]:
    """Return what lines of one group have equal: of several runs the machine may differ, for it is their subject."""
    return [name for name in CONTROLS if name != "device" or not several_runs(frame)]


def comparison(frame: pd.DataFrame, batch_key: str) -> pd.DataFrame:
    """Return one line per cell of ``frame`` (bench.analysis.frame), its columns those of bench.analysis.columns.

    ``batch_key`` is what stays equal across GPU counts besides the micro batch: ``gradient_accumulation_steps``, or
    ``train_batch_size`` where the scenario fixes that. Beside the documented columns, ``group_number`` counts the
    groups, ``line`` the lines, and ``base_line`` is that of the base (-1: there is none).
    """
    lines = cells(frame)
    lines["line"] = range(len(lines))
    lines["stack"] = stack_names(lines)
    lines["variant"] = _variants(lines)
    lines["view"] = lines["largest_batch"].map({True: LARGEST, False: SAME})
    keys = {
        SAME: [*controls(frame), batch_key],
        LARGEST: [k for k in _LARGEST_KEYS if k in lines and (k not in CONTROLS or k in controls(frame))],
    }
    parts = [_grouped(lines[lines["view"] == view], keys[view]) for view in (SAME, LARGEST)]
    parts[1]["group_number"] += parts[0]["group_number"].max() + 1 if len(parts[0]) else 0
    first = lines["run"].iloc[0] if several_runs(lines) else None
    return pd.concat([_beside(part, first) for part in parts if len(part)], ignore_index=True)


def _variants(lines: pd.DataFrame) -> pd.Series:
    """Return what a strategy's lines of one group and GPU count differ in, in words; ``""`` where nothing."""
    words = pd.Series("", index=lines.index)
    if lines["requested_stack"].notna().any():
        words += " " + lines["stack"]
    if several_runs(lines):
        words += " " + lines["run"]
    return words.str.strip()


def _grouped(lines: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    numbers = lines.groupby(keys, sort=False, dropna=False).ngroup() if len(lines) else pd.Series(dtype="int64")
    return lines.assign(group_number=numbers, group=_titles(lines, numbers))


def _beside(lines: pd.DataFrame, first: str | None) -> pd.DataFrame:
    """Return the lines of one view with their ratios to the base and to the best at the same GPU count.

    ``first`` is the run that the others are beside, ``None`` where there is one run alone.
    """
    place = ["group_number", "world_size"]
    if first is not None:
        lines = lines.assign(base=first)
        bases, by = lines[lines["run"] == first], [*place, "strategy", "stack"]
    else:
        base = lines.groupby("group_number")["strategy"].transform(_base)
        lines = lines.assign(base=base)
        bases, by = lines[lines["strategy"] == base], [*place, "stack"]
    bases = bases.drop_duplicates(by).set_index("line", drop=False)
    found = lines[by].merge(bases[[*by, "line"]], on=by, how="left")["line"].set_axis(lines.index)
    lines = lines.assign(base_line=found.fillna(-1).astype("int64"))
    for name, metric, least, unequal in _RATIOS:
        if metric not in lines:
            continue
        beside = lines["base_line"].map(bases[metric])
        leads = lines[metric].where(_can_lead(lines, timed=metric in _TIMED))
        best = leads.groupby([lines[key] for key in place]).transform("min" if least else "max")
        for word, other in (("base", beside), ("best", best)):
            allowed = (other != 0) & (unequal or lines["view"].iloc[0] == SAME)
            lines[f"{name}_vs_{word}"] = (lines[metric] / other.where(allowed)).astype("float64")
    return lines


def _can_lead(lines: pd.DataFrame, *, timed: bool) -> pd.Series:
    """Whether a line may be the best: its figures can be relied on, and it fits, as far as that is emulated."""
    doubted = lines["figures_suspect"] | (lines["times_suspect"] if timed else False)
    return ~doubted & lines["fits"].fillna(True).astype(bool) if "fits" in lines else ~doubted


def _base(strategies: pd.Series) -> str:
    present = in_order(strategies)
    return BASELINE if BASELINE in present else present[0]


def _titles(lines: pd.DataFrame, numbers: pd.Series) -> pd.Series:
    groups: dict[int, list[Line]] = {}
    for number, line in zip(numbers, plain(lines), strict=True):
        groups.setdefault(number, []).append(line)
    return numbers.map({number: title(group) for number, group in groups.items()})
