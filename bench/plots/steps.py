"""The distribution of step times: every timed step of every launch, with quartiles and median."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from bench.plots import captions
from bench.plots.axes import WIDTH_IN, chosen, not_shown
from bench.plots.groups import Entry, Group
from bench.plots.plot import Plot
from bench.plots.style import EDGE, INK, Look
from bench.record import Record

_MOST_PANELS = 4


def slowest_s(record: Record) -> list[float]:
    """Return the wall time of the slowest rank at each timed step."""
    assert record.timing is not None
    return [max(times) for times in zip(*record.timing.step_times_s, strict=True)]


def _timed(entry: Entry) -> list[Record]:
    return [record for record in entry.good if record.timing and record.timing.step_times_s]


def plot(group: Group, looks: Mapping[str, Look]) -> Plot | None:
    """Return the plot of a group; ``None`` where no row was timed."""
    timed = [entry for entry in group.entries if _timed(entry)]
    if not timed:
        return None
    all_counts = sorted({entry.world_size for entry in timed})
    counts = chosen(all_counts, _MOST_PANELS)
    caption = captions.joined(
        captions.provenance(group, "Wall time of the slowest rank, each timed optimizer step a tick"),
        "Of each launch a line of its own: the bar spans the quartiles, the marker is the median. Steps of one launch "
        "are not independent samples.",
        f"n = steps x launches, behind each name; {captions.launches(timed).removeprefix('n = ')}",
        captions.suspects(group, timed, timed=True, how="Hollow, with '?'"),
        captions.missing(group),
        not_shown(all_counts, counts),
    )
    return Plot("step-times", f"Step times: {group.name}", caption, partial(_draw, timed, counts, dict(looks)))


def _draw(timed: list[Entry], counts: list[int], looks: Mapping[str, Look]) -> Figure:
    rows = [[entry for entry in timed if entry.world_size == n] for n in counts]
    heights = [sum(0.16 + 0.12 * len(_timed(entry)) for entry in row) for row in rows]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.32 * len(rows) + 0.55), layout="constrained")
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)
    for (axes,), n, row in zip(grid, counts, rows, strict=True):
        _panel(axes, row, looks)
        axes.set_title(f"N = {n}")
    grid[-1][0].set_xlabel("step time of the slowest rank (ms)")
    return figure


def _panel(axes: Axes, row: list[Entry], looks: Mapping[str, Look]) -> None:
    names, places, place = [], [], 0.0
    for entry in row:
        launches, look = _timed(entry), looks[entry.strategy]
        steps = "/".join(dict.fromkeys(str(len(slowest_s(record))) for record in launches))
        doubt = captions.doubt(entry, timed=True)
        names.append(f"{entry.name}{doubt}  {steps} x {len(launches)}")
        places.append(place + 0.5 * (len(launches) - 1))
        for record in launches:
            times = np.array(slowest_s(record)) * 1e3
            _ticks(axes, times, place)
            low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
            axes.hlines(place, low, high, color=look.colour, linewidth=5, alpha=0.55, zorder=2)
            axes.plot(
                middle,
                place,
                marker=look.marker,
                markersize=6.5,
                color=look.colour,
                markeredgecolor=look.colour if doubt else EDGE,
                markeredgewidth=1.5 if doubt else 0.6,
                fillstyle="none" if doubt else "full",
                linestyle="none",
                zorder=4,
            )
            place += 1
        place += 0.6
    axes.set_yticks(places, names)
    axes.set_ylim(place - 0.9, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _ticks(axes: Axes, times: np.ndarray, place: float) -> None:
    """Draw all steps of one launch as one path, for a run has many."""
    vertices = [(time, place + side * 0.3) for time in times for side in (-1, 1)]
    codes = [Path.MOVETO, Path.LINETO] * len(times)
    axes.add_patch(PathPatch(Path(vertices, codes), facecolor="none", edgecolor=INK, linewidth=0.9, zorder=3))
    axes.update_datalim(vertices)
    axes.autoscale_view()
