"""Plots of a run: what can be drawn from its records, as SVG for a page or as files (docs/plots.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

from bench.plots import breakdown, heatmap, memory, pareto, predicted, steps, throughput, traffic
from bench.plots.captions import joined, listed
from bench.plots.files import save
from bench.plots.groups import Group, groups, stem
from bench.plots.plot import Plot
from bench.plots.style import Look, looks, settings
from bench.plots.svg import svg_text
from bench.record import Record

__all__ = ["PAGE_LIMIT", "Plot", "plots", "save", "svg_text"]

# How many groups of rows a page has room for, per kind of plot: one takes half a second to draw, and 25 KB.
PAGE_LIMIT = 2


def plots(records: Sequence[Record], *, limit: int | None = None) -> list[Plot]:
    """Return the plots that the rows have numbers for, kind by kind.

    ``limit``: of most kinds there is a plot per group of comparable rows; draw so many per kind, 1 or more, and name
    the others in the last one's caption. ``None``: draw all.
    """
    found, seen = groups(records), looks(records)
    taken: set[str] = set()
    made = _limited(heatmap.heatmaps(found), limit)
    for kind in _kinds(seen):
        made += _limited([plot for group in found if (plot := kind(group))], limit)
    made += predicted.comparisons(records, seen)
    return [
        replace(plot, name=stem(plot.name, plot.title.partition(": ")[2], taken), draw=partial(_styled, plot.draw))
        for plot in made
    ]


def _kinds(seen: Mapping[str, Look]) -> list[Callable[[Group], Plot | None]]:
    return [
        memory.plot,
        traffic.plot,
        partial(throughput.plot, looks=seen),
        partial(steps.plot, looks=seen),
        breakdown.plot,
        partial(pareto.plot, looks=seen),
    ]


def _styled(draw: Callable[[], Figure]) -> Figure:
    with settings():
        return draw()


def _limited(found: list[Plot], limit: int | None) -> list[Plot]:
    if limit is None or len(found) <= limit:
        return found
    *kept, last = found[:limit]
    left = listed(plot.title.partition(": ")[2] or plot.title for plot in found[limit:])
    note = f"Not drawn here: {left}; 'zerostage report RUN --plots FOLDER' draws all."
    return [*kept, replace(last, caption=joined(last.caption, note))]
