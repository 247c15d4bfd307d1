"""Throughput and scaling efficiency against GPU count; of a single count, the throughput alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.plots import captions
from bench.plots.axes import WIDTH_IN, legend, rate_unit
from bench.plots.groups import Entry, Group, doubtful
from bench.plots.plot import Plot
from bench.plots.style import INK, Look
from bench.record import Record


@dataclass(frozen=True)
class Point:
    """Tokens per second of all ranks together: median over launches, and the lowest and highest of them.

    Of one launch the bounds are those at the quartiles of its step times.
    """

    world_size: int
    value: float
    low: float
    high: float
    doubtful: bool


def tokens_per_second(record: Record) -> float | None:
    """Return the tokens per second of all ranks together."""
    return record.throughput.tokens_per_second if record.throughput else None


def _quartiles(record: Record) -> tuple[float, float]:
    """Return the tokens per second at the quartiles of one launch's steps of the slowest rank."""
    assert record.timing is not None
    slowest = np.max(np.array(record.timing.step_times_s), axis=0)
    low, high = np.quantile(slowest, (0.75, 0.25))
    tokens = record.train_batch_size * record.cell.seq_length
    return float(tokens / low), float(tokens / high)


def point(entry: Entry) -> Point | None:
    """Return the point of one cell; ``None`` where no launch was timed."""
    timed = [record for record in entry.good if tokens_per_second(record) is not None]
    if not timed:
        return None
    values = [tokens_per_second(record) or 0.0 for record in timed]
    low, high = (min(values), max(values)) if len(timed) > 1 or not timed[0].timing else _quartiles(timed[0])
    doubt = any(doubtful(record, timed=True) for record in timed)
    return Point(entry.world_size, float(np.median(values)), low, high, doubt)


def series(group: Group) -> dict[str, tuple[str, str | None, list[Point]]]:
    """Return, by name in the legend: strategy, stack and points by rising GPU count."""
    found: dict[str, tuple[str, str | None, list[Point]]] = {}
    for entry in group.entries:
        if (value := point(entry)) is not None:
            # Of a search the micro batch is in the name, and may differ from one GPU count to the next.
            name = entry.name.partition(", micro batch")[0]
            found.setdefault(name, (entry.strategy, entry.stack, []))[2].append(value)
    return found


def plot(group: Group, looks: Mapping[str, Look]) -> Plot | None:
    """Return the plot of a group; ``None`` where no row was timed."""
    found = series(group)
    if not found:
        return None
    timed = [entry for entry in group.entries if point(entry) is not None]
    counts = sorted({entry.world_size for entry in timed})
    several = any(len(entry.good) > 1 for entry in timed)
    scaling = (
        "strong scaling, the global batch stays" if group.same_global_batch else "weak scaling, the micro batch stays"
    )
    spread = (
        "Points are medians over launches, bars span the lowest and the highest launch."
        if several
        else "Of one launch the bars span the quartiles of its steps, which are no independent samples: no ranking."
    )
    caption = captions.joined(
        captions.provenance(group, "Tokens per second at the median step of the slowest rank"),
        captions.launches(timed),
        spread,
        f"Efficiency: tokens/s per {group.per} over those of the strategy's smallest N ({scaling})."
        if len(counts) > 1
        else "",
        captions.suspects(group, timed, timed=True, how="Hollow"),
        captions.missing(group),
    )
    title = f"{'Throughput and scaling efficiency' if len(counts) > 1 else 'Throughput'}: {group.name}"
    draw = partial(_draw_scaling if len(counts) > 1 else _draw_one, group, counts, found, dict(looks))
    return Plot("throughput", title, caption, draw)


def fill_style(stack: str | None, stacks: list[str | None]) -> str:
    """Return how much of a marker is filled, which tells stacks apart: left, bottom, top or right half, or all."""
    halves = ("full", "left", "bottom", "top", "right")
    return halves[stacks.index(stack) % len(halves)]


def _stacks(found: Mapping[str, tuple[str, str | None, list[Point]]]) -> list[str | None]:
    return list(dict.fromkeys(stack for _, stack, _ in found.values()))


def marker(look: Look, stack: str | None, stacks: list[str | None], *, hollow: bool) -> dict[str, object]:
    """Return how a point is drawn: shape by strategy, filled half by stack, hollow where not to be relied on."""
    return {
        "marker": look.marker,
        "color": look.colour,
        "markersize": 7,
        "markeredgecolor": look.colour if hollow else "#222222",
        "markeredgewidth": 1.6 if hollow else 0.6,
        "fillstyle": "none" if hollow else fill_style(stack, stacks),
        "markerfacecoloralt": "white",
    }


def _draw_scaling(
    group: Group,
    counts: list[int],
    found: Mapping[str, tuple[str, str | None, list[Point]]],
    looks: Mapping[str, Look],
) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    stacks, handles = _stacks(found), []
    for number, (name, (strategy, stack, points)) in enumerate(found.items()):
        look = looks[strategy]
        # Side by side, so that equal values and their bars stay seen.
        shift = 2 ** (0.22 * ((number + 0.5) / len(found) - 0.5))
        base = points[0].value / points[0].world_size
        for axes, scale in ((left, None), (right, base)):
            _line(axes, points, shift, scale, look, (stack, stacks))
        handles.append(_handle(name, look, stack, stacks))
    _count_axis(left, counts, group.per)
    _count_axis(right, counts, group.per)
    _rate_axis(left, [each for _, _, points in found.values() for each in points])
    right.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    right.set_ylim(bottom=0)
    right.set_ylabel("scaling efficiency (%)")
    right.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f}")
    legend(figure, handles)
    return figure


def _rate_axis(axes: Axes, points: list[Point]) -> None:
    """From 0 where that leaves the lowest point to be seen, else by powers."""
    scale, words = rate_unit(max(each.high for each in points))
    if max(each.value for each in points) > 12 * min(each.value for each in points):
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(f"throughput ({words})")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / scale:,g}")


def _line(
    axes: Axes,
    points: list[Point],
    shift: float,
    base: float | None,
    look: Look,
    stacked: tuple[str | None, list[str | None]],
) -> None:
    divide = [1.0 if base is None else base * each.world_size for each in points]
    places = [each.world_size * shift for each in points]
    values = [each.value / by for each, by in zip(points, divide, strict=True)]
    axes.plot(places, values, color=look.colour, linestyle=look.line, linewidth=1.4, zorder=2)
    for each, place, value, by in zip(points, places, values, divide, strict=True):
        axes.vlines(place, each.low / by, each.high / by, color=look.colour, linewidth=1.6, zorder=2)
        style = marker(look, *stacked, hollow=each.doubtful)
        axes.plot(place, value, linestyle="none", zorder=3, **style)  # type: ignore[arg-type]


def _handle(name: str, look: Look, stack: str | None, stacks: list[str | None]) -> Artist:
    style = marker(look, stack, stacks, hollow=False)
    return Line2D([], [], linestyle=look.line, linewidth=1.4, label=name, **style)  # type: ignore[arg-type]


def _count_axis(axes: Axes, counts: list[int], per: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    axes.set_xticks(counts, [f"{n}" for n in counts])
    axes.minorticks_off()
    axes.set_xlabel(f"N ({per}s)")
    axes.grid(axis="y")


def _draw_one(
    group: Group,
    counts: list[int],
    found: Mapping[str, tuple[str, str | None, list[Point]]],
    looks: Mapping[str, Look],
) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 0.3 * len(found) + 1.0), layout="constrained")
    axes, stacks = figure.subplots(), _stacks(found)
    for place, (strategy, stack, points) in enumerate(found.values()):
        look = looks[strategy]
        for each in points:
            axes.hlines(place, each.low, each.high, color=look.colour, linewidth=1.8)
            style = marker(look, stack, stacks, hollow=each.doubtful)
            axes.plot(each.value, place, linestyle="none", zorder=3, **style)  # type: ignore[arg-type]
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_title(f"N = {counts[0]}")
    scale, words = rate_unit(max(each.high for _, _, points in found.values() for each in points))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:,g}")
    axes.set_xlabel(f"throughput of all {group.per}s together ({words})")
    return figure
