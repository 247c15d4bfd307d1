"""Model and GPU count down, strategies across: the fastest that fits, or without times how full the GPU is."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import seaborn
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.analysis.answer import LAUNCHES
from bench.analysis.comparison import in_order
from bench.plots import captions
from bench.plots.axes import WIDTH_IN, size
from bench.plots.capacity import capacity
from bench.plots.groups import Entry, Group, plain
from bench.plots.memory import peak_bytes
from bench.plots.plot import Plot
from bench.plots.style import EDGE, INK, SKY
from bench.record import Record

_MOST_ROWS = 20
NOT_RUN = "not run"


@dataclass(frozen=True)
class Square:
    """``share`` is its shade, from 0 to 1; ``None`` where a word stands alone."""

    text: str
    share: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A model with its settings at one GPU count, and if need be one stack."""

    name: str
    squares: dict[str, Square]


def _speed(record: Record) -> float | None:
    return record.throughput.tokens_per_second_per_gpu if record.throughput else None


def _speeds(entry: Entry) -> list[float]:
    return [value for record in entry.good if (value := _speed(record)) is not None]


def _separated(entries: Sequence[Entry]) -> Entry | None:
    """Return the fastest of ``entries`` where launches separate it from the next, as the answers do; else ``None``."""
    relied = [entry for entry in entries if _speeds(entry) and not captions.doubt(entry, timed=True)]
    if len(relied) < 2:
        return None
    best, second = sorted(relied, key=lambda entry: -float(np.median(_speeds(entry))))[:2]
    enough = min(len(_speeds(best)), len(_speeds(second))) >= LAUNCHES
    return best if enough and min(_speeds(best)) > max(_speeds(second)) else None


def _rows(group: Group) -> list[tuple[str, list[Entry]]]:
    found: list[tuple[str, list[Entry]]] = []
    for n in group.counts:
        at = group.at(n)
        for stack in dict.fromkeys(entry.stack for entry in at):
            name = ", ".join([f"{group.name}, N={n}", *([plain(stack)] if stack else [])])
            found.append((name, [entry for entry in at if entry.stack == stack]))
    return found


def _fastest(entries: Sequence[Entry]) -> dict[str, Square]:
    speeds = {entry.strategy: float(np.median(_speeds(entry))) for entry in entries if _speeds(entry)}
    best, fastest = max(speeds.values(), default=0.0), _separated(entries)
    found = {}
    for entry in entries:
        speed = speeds.get(entry.strategy)
        if speed is None:
            found[entry.strategy] = Square(entry.words or "not timed")
            continue
        framed = entry is fastest
        text = f"{'★ ' if framed else ''}{speed:,.0f}{captions.doubt(entry, timed=True)}\n{speed / best:.0%}"
        found[entry.strategy] = Square(text, speed / best, framed)
    return found


def _fullness(entries: Sequence[Entry]) -> dict[str, Square]:
    found = {}
    for entry in entries:
        record = entry.middle(peak_bytes)
        if record is None:
            found[entry.strategy] = Square(entry.words or "no memory")
            continue
        peak, room = peak_bytes(record) or 0, capacity(record)
        shown = f"{size(peak)}{captions.doubt(entry)}"
        if room is None:
            found[entry.strategy] = Square(shown)
            continue
        share = peak / room[0]
        modelled = record.emulation is None or record.emulation.fits
        if share > 1 or not modelled:
            found[entry.strategy] = Square(f"does not fit\n{shown}")
        else:
            found[entry.strategy] = Square(f"{shown}\n{_percent(share)}", share)
    return found


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def heatmaps(groups: Sequence[Group]) -> list[Plot]:
    """Return a heatmap of the groups with times, then one of those without; of each further ones after 20 rows."""
    timed, untimed = ([group for group in groups if _is_timed(group) is wanted] for wanted in (True, False))
    return [*_plots(timed, timed=True), *_plots(untimed, timed=False)]


def _is_timed(group: Group) -> bool:
    """Whether its rows have times, or would have them if they had not failed."""
    good = [record for entry in group.entries for record in entry.good]
    return not group.emulated and (not good or any(_speed(record) is not None for record in good))


def _plots(groups: Sequence[Group], *, timed: bool) -> list[Plot]:
    judge = _fastest if timed else _fullness
    rows = [Row(name, judge(entries)) for group in groups for name, entries in _rows(group)]
    entries = [entry for group in groups for entry in group.entries]
    squares = [square for row in rows for square in row.squares.values()]
    if len(squares) < 2 or all(square.share is None for square in squares):  # nothing to compare
        return []
    if timed:
        title = "The fastest that fits, by model and strategy"
        text = (
            "Measured, not emulated: tokens per second and GPU (on CPU: per rank), median over launches; below it and "
            f"as its shade the share of the row's highest; ★ and a frame: the fastest, where at least {LAUNCHES} "
            "launches each separate it from the next. Compare along a row: rows differ in their settings."
        )
    else:
        title = "How full the GPU is, by model and strategy"
        text = (
            f"{captions.kinds(groups)}: peak allocated memory per GPU in one settled optimizer step; below it and as "
            "its shade the share of the GPU's memory (or of the budget). 'does not fit': more than there is, for "
            "emulated rows by the modelled allocator's reserved memory."
        )
    doubts = "'?': not to be relied on." if any("?" in s.text for s in squares) else ""
    words = "A word is what became of the cell; 'not run': no such cell in the run."
    caption = captions.joined(text, captions.launches(entries), doubts, words)
    found = []
    for first in range(0, len(rows), _MOST_ROWS):
        part = rows[first : first + _MOST_ROWS]
        whole = f" (rows {first + 1} to {first + len(part)} of {len(rows)})" if len(rows) > _MOST_ROWS else ""
        found.append(Plot("heatmap", title + whole, caption, partial(_draw, part)))
    return found


def _draw(rows: Sequence[Row]) -> Figure:
    columns = in_order(name for row in rows for name in row.squares)
    names = ["\n".join(textwrap.wrap(row.name, 28, break_on_hyphens=False)[:4]) for row in rows]
    lines = [max(2, name.count("\n") + 1) for name in names]
    long = max(len(plain(name)) for name in columns) > 7
    width = max(WIDTH_IN, 2.0 + 0.66 * len(columns))
    figure = Figure(figsize=(width, 0.2 * max(lines) * len(rows) + (1.35 if long else 0.6)), layout="constrained")
    axes = figure.subplots()
    shares = np.full((len(rows), len(columns)), np.nan)
    texts = np.full(shares.shape, "", dtype=object)
    for down, row in enumerate(rows):
        for across, column in enumerate(columns):
            square = row.squares.get(column, Square(NOT_RUN))
            if square.share is None:
                word = "\n".join(textwrap.wrap(square.text, 12)) if "\n" not in square.text else square.text
                axes.text(across + 0.5, down + 0.5, word, ha="center", va="center", style="italic", fontsize=7)
                axes.add_patch(
                    Rectangle(
                        (across, down),
                        1,
                        1,
                        fill=False,
                        edgecolor=INK,
                        linewidth=0.4,
                        alpha=0.4,
                        zorder=3,
                        clip_on=False,
                    )
                )
                continue
            shares[down, across], texts[down, across] = square.share, square.text
            if square.best:
                inside = Rectangle((across + 0.03, down + 0.04), 0.94, 0.92, fill=False, edgecolor=EDGE, linewidth=2)
                inside.set_zorder(3)
                inside.set_gid("best")
                axes.add_patch(inside)
    seaborn.heatmap(
        shares,
        ax=axes,
        mask=np.isnan(shares),
        annot=texts,
        fmt="",
        annot_kws={"fontsize": 7.5, "color": EDGE},
        cmap=seaborn.light_palette(SKY, as_cmap=True),
        vmin=0,
        vmax=1,
        cbar=False,
        linewidths=1,
        linecolor="white",
        xticklabels=False,
        yticklabels=False,
    )
    axes.set_xticks(np.arange(len(columns)) + 0.5, [plain(name) for name in columns])
    if long:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(rows)) + 0.5, names, rotation=0, fontsize=8)
    axes.tick_params(length=0)
    axes.set_xlabel("strategy")
    axes.set_ylabel("model, GPU count N" if len(rows) > 2 else "")
    return figure
