# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""What others have published: rows of one source that compare ZeRO stages of one model, on the same GPUs, at one batch.

published.csv keeps source and locator of every row; figures are as given, by each source's own clock and counting. They
decide no verdict.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path

from bench.claims.claim import text
from bench.claims.order import SAME
from bench.claims.verdict import Text

_ALIKE = ("source", "locator", "date", "model", "gpu", "n_gpus", "precision", "seq_len", "micro_bs", "gas")
Row = dict[str, str]


@cache
def groups() -> tuple[tuple[Row, ...], ...]:
    """Return the rows by what they share; each group compares at least two stages."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as stream:
        found: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in csv.DictReader(stream):
            found[tuple(row[key] for key in _ALIKE)].append(row)
    return tuple(tuple(sorted(rows, key=lambda row: row["stage"])) for rows in found.values())


def _figure(row: Row, column: str) -> float | None:
    """Return a column's number: of several GPUs (``12.6+10.9``) the sum, of ``OOM`` infinity; ``None`` if empty."""
    if row[column] == "OOM":
        return math.inf
    return sum(float(part) for part in row[column].split("+")) if row[column] else None


def _setting(row: Row, language: str) -> str:
    gpu = f"{row['n_gpus']} {row['gpu']}" if row["gpu"] else f"{row['n_gpus']} GPU{'s' if language == 'en' else ''}"
    words = {
        "en": (("precision", "{}"), ("seq_len", "seq {}"), ("micro_bs", "micro batch {}"), ("gas", "GAS {}")),
        "zh": (("precision", "{}"), ("seq_len", "序列长度 {}"), ("micro_bs", "微批 {}"), ("gas", "GAS {}")),
    }[language]
    parts = [form.format(row[key]) for key, form in words if row[key]]
    return ", ".join([f"{row['model']}", gpu, *parts])


def _source(row: Row) -> str:
    return f"[{row['source']}, {row['locator']}]"


def _sentence(rows: tuple[Row, ...], value: str, unit: str) -> Text | None:
    shown = [(row["stage"], row[value], row[unit]) for row in rows if row[value]]
    if len(shown) < 2:
        return None
    given = ", ".join(f"{stage} {figure}" for stage, figure, _ in shown) + f" {shown[0][2]}"
    tuner = any("tuner metric" in row["kind"] for row in rows)
    clock = (
        (" (by the autotuner's timers, not end to end)", "（取自自动调优器的计时，并非端到端）") if tuner else ("", "")
    )
    first = rows[0]
    return text(
        f"{_setting(first, 'en')}: {given}{clock[0]} {_source(first)}",
        f"{_setting(first, 'zh')}：{given}{clock[1]} {_source(first)}",
    )


_COLUMNS = {"throughput": ("throughput", "throughput_unit"), "memory": ("mem_value", "mem_unit")}


def sentences(kinds: Iterable[str], stages: Iterable[str] = ()) -> list[Text]:
    """Return what is published on these kinds of figures: how often which stage led, then each comparison.

    ``stages``: only comparisons that have all of these (``ZeRO-1``).
    """
    found = []
    for kind in kinds:
        value, unit = _COLUMNS[kind]
        wanted = [rows for rows in groups() if set(stages) <= {row["stage"] for row in rows}]
        compared = [(rows, said) for rows in wanted if (said := _sentence(rows, value, unit)) is not None]
        found += _led(kind, [rows for rows, _ in compared], value, set(stages)) + [said for _, said in compared]
    return found


def _led(kind: str, compared: list[tuple[Row, ...]], value: str, among: set[str]) -> list[Text]:
    """Count, for each pair of stages with all of ``among``, in how many comparisons which had the better figure."""
    wins: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    sources: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for rows in compared:
        for low, high in combinations(rows, 2):
            here, there = _figure(low, value), _figure(high, value)
            pair = (low["stage"], high["stage"])
            if here is not None and there is not None and among <= set(pair):
                wins[pair].append(here / there if kind == "throughput" else there / here)
                sources[pair][low["source"]] = None
    said = {"throughput": ("faster", "slower", "更快", "更慢"), "memory": ("smaller", "larger", "更小", "更大")}[kind]
    found = []
    for (low_stage, high_stage), won in sorted(wins.items()):
        better, worse = sum(ratio > 1 + SAME for ratio in won), sum(ratio < 1 - SAME for ratio in won)
        where = ", ".join(sources[low_stage, high_stage])
        found.append(
            text(
                f"On the same model, GPUs and batch {low_stage} was {said[0]} than {high_stage} in {better} of "
                f"{len(won)}, {said[1]} in {worse} (by more than 1 %) [{where}]",
                f"模型、GPU 与批大小相同的 {len(won)} 组比较中，{low_stage} 比 {high_stage} {said[2]}的"
                f"有 {better} 组，{said[3]}的有 {worse} 组（相差超过 1%） [{where}]",
            )
        )
    return found
