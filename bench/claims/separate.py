# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Which settings tell the rows that support a claim from those that contradict it. Found from the rows.

The answer is the smallest tree: a setting at each node, a branch per value or range of values, every leaf of one kind.
Ties are decided by the order of `NAMES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Any

from bench.claims.verdict import Evidence, Text

NAMES: dict[str, Text] = {
    "gradient_accumulation_steps": {
        "en": "gradient_accumulation_steps",
        "zh": "gradient_accumulation_steps（梯度累积步数）",
    },
    "dtype": {"en": "dtype", "zh": "dtype（精度）"},
    "deepspeed": {"en": "release of DeepSpeed", "zh": "DeepSpeed 版本"},
    "over_limits": {
        "en": "number of parameters over stage3_max_live_parameters / stage3_max_reuse_distance",
        "zh": "参数量与 stage3_max_live_parameters / stage3_max_reuse_distance 之比",
    },
    "num_params": {"en": "number of parameters", "zh": "参数量"},
    "world_size": {"en": "number of GPUs", "zh": "GPU 数"},
    "wire_model": {
        "en": "backend (its wire model)",
        "zh": "通信后端（线路模型）",
    },
}
MOST_SETTINGS = 3
# A value of a setting, its rows, and what they say: None where they disagree.
Branch = tuple[Any, list[Evidence], bool | None]


@dataclass(frozen=True)
class Leaf:
    """Rows that agree; ``conditions`` are (setting, values) from the root down."""

    supports: bool
    conditions: tuple[tuple[str, tuple[Any, ...]], ...]


def separated(evidence: Sequence[Evidence]) -> list[Leaf] | None:
    """Return the leaves of the smallest tree that tells the two kinds apart; ``None`` where no settings do."""
    best: tuple[int, list[Leaf]] | None = None
    usable = [key for key in NAMES if all(row.facts.get(key) is not None for row in evidence)]
    varied = [key for key in usable if len({row.facts[key] for row in evidence}) > 1]
    for size in range(1, min(MOST_SETTINGS, len(varied)) + 1):
        for order in permutations(varied, size):
            leaves = _grow(list(evidence), order, ())
            if leaves is not None and (best is None or len(leaves) < best[0]):
                best = (len(leaves), leaves)
    return None if best is None else best[1]


def _grow(
    rows: list[Evidence], order: tuple[str, ...], above: tuple[tuple[str, tuple[Any, ...]], ...]
) -> list[Leaf] | None:
    kinds = {row.supports for row in rows}
    if len(kinds) == 1:
        return [Leaf(kinds.pop(), above)]
    if not order:
        return None
    key = order[0]
    branches = []
    for value in sorted({row.facts[key] for row in rows}):
        inside = [row for row in rows if row.facts[key] == value]
        kinds = {row.supports for row in inside}
        branches.append((value, inside, kinds.pop() if len(kinds) == 1 else None))
    leaves: list[Leaf] = []
    for kind, members in groupby(_ordered(branches), key=lambda branch: branch[2]):
        # Values of one kind that lie beside each other are one branch. Those that stay mixed are, if the rest of the
        # settings then needs fewer leaves.
        together = list(members)
        apart = [[branch] for branch in together] if kind is None else []
        grown = [found for parts in ([together], apart) if (found := _grown(parts, key, order[1:], above))]
        if not grown:
            return None
        fewest: list[Leaf] = min(grown, key=len)
        leaves += fewest
    return leaves


def _grown(
    parts: list[list[Branch]], key: str, order: tuple[str, ...], above: tuple[tuple[str, tuple[Any, ...]], ...]
) -> list[Leaf] | None:
    leaves: list[Leaf] = []
    for branches in parts:
        values = tuple(value for value, *_ in branches)
        found = _grow([row for _, rows, _ in branches for row in rows], order, (*above, (key, values)))
        if found is None:
            return None
        leaves += found
    return leaves


def _ordered(branches: list[Branch]) -> list[Branch]:
    numeric = all(isinstance(value, int | float) for value, *_ in branches)
    return branches if numeric else sorted(branches, key=lambda branch: str(branch[2]))


def variable(leaves: list[Leaf], language: str) -> str:
    """Return the names of the settings that tell the rows apart."""
    used = dict.fromkeys(key for leaf in leaves for key, _ in leaf.conditions)
    return (" and " if language == "en" else "、").join(NAMES[key][language] for key in used)


def where(leaves: list[Leaf], supports: bool, language: str) -> str:
    """Return the conditions under which the rows support (or contradict), in words."""
    found = []
    for leaf in leaves:
        if leaf.supports == supports:
            parts = [f"{_SHORT[key][language]} {_values(key, values, language)}" for key, values in leaf.conditions]
            found.append((" and " if language == "en" else " 且 ").join(parts))
    return ("; " if language == "en" else "；").join(found)


_SHORT: dict[str, Text] = {
    "gradient_accumulation_steps": {"en": "GAS", "zh": "GAS"},
    "dtype": {"en": "dtype", "zh": "精度"},
    "deepspeed": {"en": "DeepSpeed", "zh": "DeepSpeed"},
    "over_limits": {"en": "parameters / limit", "zh": "参数量/上限"},
    "num_params": {"en": "parameters", "zh": "参数量"},
    "world_size": {"en": "N", "zh": "N"},
    "wire_model": {"en": "wire model", "zh": "线路模型"},
}


def _values(key: str, values: tuple[Any, ...], language: str) -> str:
    if key in ("over_limits", "num_params") and len(values) > 1:
        joined = " to " if language == "en" else " 至 "
        return joined.join(_number(value) for value in (values[0], values[-1]))
    return (" or " if language == "en" else " 或 ").join(_number(value) for value in values)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
