"""Speed against memory: which strategies no other beats in both. Without times, traffic against memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.plots import captions
from bench.plots.axes import WIDTH_IN, bytes_axis, chosen, legend, not_shown, rate_unit, size
from bench.plots.capacity import capacity, line_text
from bench.plots.groups import Entry, Group, doubtful
from bench.plots.memory import peak_bytes
from bench.plots.plot import Plot
from bench.plots.style import INK, SKY, Look
from bench.plots.throughput import marker
from bench.plots.traffic import sent_bytes
from bench.record import Record

# Sizes of markers at one place, so that equal strategies stay seen.
_SIZES = (11.0, 7.5, 4.5, 2.5)


@dataclass(frozen=True)
class Place:
    """One cell: its peak and what is set against it, both medians over launches. ``fits``: ``None`` if not known."""

    entry: Entry
    memory: float
    value: float
    fits: bool | None
    doubtful: bool


def _speed(record: Record) -> float | None:
    return record.throughput.tokens_per_second_per_gpu if record.throughput else None


def _place(entry: Entry, timed: bool) -> Place | None:
    value = _speed if timed else sent_bytes
    found = [
        (peak, number, record)
        for record in entry.good
        if (peak := peak_bytes(record)) is not None and (number := value(record)) is not None
    ]
    if not found:
        return None
    memory, number = (float(np.median([each[axis] for each in found])) for axis in (0, 1))
    records = [record for *_, record in found]
    room = capacity(records[0])
    fits = None if room is None else all(_fits(record, room[0]) for record in records)
    return Place(entry, memory, number, fits, any(doubtful(record, timed=timed) for record in records))


def _fits(record: Record, room: float) -> bool:
    modelled = record.emulation is None or record.emulation.fits
    return modelled and (peak_bytes(record) or 0) <= room


def front(places: Sequence[Place], *, timed: bool) -> list[Place]:
    """Return the places that fit, can be relied on and are beaten by no other such, by rising memory.

    One beats another with no more memory and more speed (or less traffic), or with less memory and as much.
    """
    sign = -1 if timed else 1
    best: list[Place] = []
    for place in sorted(
        (p for p in places if p.fits is not False and not p.doubtful), key=lambda p: (p.memory, sign * p.value)
    ):
        if not best or sign * place.value < sign * best[-1].value:
            best.append(place)
    return best


def plot(group: Group, looks: Mapping[str, Look]) -> Plot | None:
    """Return the plot of a group; ``None`` where no row has both numbers."""
    timed = any(_speed(record) is not None for entry in group.entries for record in entry.good)
    found = [place for entry in group.entries if (place := _place(entry, timed)) is not None]
    all_counts = [n for n in group.counts if any(p.value for p in found if p.entry.world_size == n)]
    counts = chosen(all_counts)
    rows = [[place for place in found if place.entry.world_size == n] for n in counts]
    if not rows:
        return None
    entries = [place.entry for row in rows for place in row]
    what = f"tokens/s per {group.per}" if timed else f"bytes sent per {group.per} and optimizer step"
    caption = captions.joined(
        captions.provenance(group, f"Peak allocated memory per {group.per} and {what}, medians over launches"),
        "Better is up and to the left."
        if timed
        else "No row was timed, so traffic stands in for speed, of which it is "
        "only a part: better is down and to the left.",
        "Ringed, and joined by the dashed line: of the strategies that fit and can be relied on those that no other "
        "beats in both.",
        _region(found, group),
        captions.launches(entries),
        "One launch each is no ranking by speed." if timed and all(len(e.good) == 1 for e in entries) else "",
        captions.suspects(group, entries, timed=timed, how="Hollow"),
        captions.missing(group),
        not_shown(all_counts, counts),
    )
    title = f"{'Throughput' if timed else 'Traffic'} against peak memory: {group.name}"
    return Plot("pareto", title, caption, partial(_draw, group, counts, rows, timed, dict(looks)))


def _region(found: Sequence[Place], group: Group) -> str:
    room = capacity(group.first)
    if room is None:
        return line_text(group)
    text = f"Shaded: what fits into {size(room[0])} ({room[1]})."
    if any(place.fits is False for place in found):
        text += " Crossed: does not fit"
        text += ", the modelled allocator's reserved memory counted." if group.first.emulation else "."
    return text


def _draw(group: Group, counts: list[int], rows: list[list[Place]], timed: bool, looks: Mapping[str, Look]) -> Figure:
    across = min(len(rows), 3 if len(rows) != 4 else 2)
    down = -(-len(rows) // across)
    figure = Figure(figsize=(WIDTH_IN, 3.1 * down + 0.8 if across > 1 else 3.9), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    flat = [place for row in rows for place in row]
    memory, value = (max(getattr(place, name) for place in flat) for name in ("memory", "value"))
    room = capacity(group.first)
    width = memory * 1.12
    stacks = list(dict.fromkeys(place.entry.stack for place in flat))
    for axes, n, row in zip(grid, counts, rows, strict=False):
        axes.set_title(f"N = {n}")
        if room:
            axes.axvspan(0, min(room[0], width), color=SKY, alpha=0.16, linewidth=0, zorder=0, gid="fits")
            if room[0] < width:
                axes.axvline(room[0], color=INK, linestyle=(0, (4, 2)), linewidth=1.2)
        _front(axes, front(row, timed=timed))
        _points(axes, row, looks, stacks, (memory, value))
        axes.grid(axis="both")
    for axes in grid[len(rows) :]:
        axes.set_axis_off()
    for number, axes in enumerate(grid[: len(rows)]):
        below = number + across >= len(rows)
        bytes_axis(axes, memory, f"peak memory per {group.per}" if across < 3 else "peak memory", room=1.12)
        axes.set_xlabel(axes.get_xlabel() if below else "")
        axes.tick_params(axis="x", labelbottom=below)
        if timed:
            axes.set_ylim(0, value * 1.12)
            scale, words = rate_unit(value)
            axes.yaxis.set_major_formatter(lambda tick, _, by=scale: f"{tick / by:,g}")
            axes.set_ylabel(f"throughput per {group.per} ({words})" if number % across == 0 else "")
        else:
            bytes_axis(axes, value, f"sent per {group.per} and step", vertical=True, room=1.12)
            axes.set_ylabel(axes.get_ylabel() if number % across == 0 else "")
    legend(figure, _handles(flat, looks, stacks, room), columns=5)
    return figure


def _front(axes: Axes, best: list[Place]) -> None:
    axes.plot(
        [place.memory for place in best],
        [place.value for place in best],
        color=INK,
        linestyle=(0, (5, 3)),
        linewidth=1,
        alpha=0.6,
        zorder=1,
        gid="front",
    )
    for place in best:
        axes.plot(
            place.memory, place.value, marker="o", markersize=17, color=INK, fillstyle="none", alpha=0.6, zorder=2
        )


def _points(
    axes: Axes,
    row: Sequence[Place],
    looks: Mapping[str, Look],
    stacks: list[str | None],
    scale: tuple[float, float],
) -> None:
    drawn: list[tuple[float, float]] = []
    for place in row:
        here = (place.memory / scale[0], place.value / scale[1])
        below = sum(abs(here[0] - x) < 0.012 and abs(here[1] - y) < 0.012 for x, y in drawn)
        drawn.append(here)
        style = marker(looks[place.entry.strategy], place.entry.stack, stacks, hollow=place.doubtful)
        style["markersize"] = _SIZES[min(below, len(_SIZES) - 1)]
        axes.plot(place.memory, place.value, linestyle="none", zorder=3 + below, clip_on=False, **style)  # type: ignore[arg-type]
        if place.fits is False:
            axes.plot(place.memory, place.value, marker="x", markersize=12, color=INK, zorder=9, gid="does-not-fit")


def _handles(
    flat: Sequence[Place], looks: Mapping[str, Look], stacks: list[str | None], room: tuple[float, str] | None
) -> list[Artist]:
    named = {place.entry.name.partition(", micro batch")[0]: place.entry for place in flat}
    found: list[Artist] = []
    for name, entry in named.items():
        style = marker(looks[entry.strategy], entry.stack, stacks, hollow=False)
        found.append(Line2D([], [], linestyle="none", label=name, **style))  # type: ignore[arg-type]
    if room:
        found.append(Patch(color=SKY, alpha=0.25, linewidth=0, label=f"fits ({room[1]} {size(room[0])})"))
    if any(place.fits is False for place in flat):
        found.append(Line2D([], [], linestyle="none", marker="x", markersize=8, color=INK, label="does not fit"))
    return found
