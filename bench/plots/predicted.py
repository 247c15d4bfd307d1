"""What was predicted against what was counted, and emulated against measured: on log axes, with the diagonal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.analysis.agreement import pairs
from bench.analysis.comparison import in_order
from bench.plots.axes import WIDTH_IN, legend, size
from bench.plots.groups import plain
from bench.plots.plot import Plot
from bench.plots.style import INK, Look
from bench.plots.throughput import marker
from bench.record import Record
from bench.validity.traffic import measured_volumes, practice_volumes


@dataclass(frozen=True)
class Pair:
    """Bytes on either axis; ``equal``: to the byte, of traffic also by phase, operation and dtype."""

    strategy: str
    across: float
    up: float
    equal: bool


@dataclass(frozen=True)
class Panel:
    """One comparison: the axes' labels, with the unit in their ticks, and its pairs."""

    title: str
    across: str
    up: str
    pairs: list[Pair]

    @property
    def count(self) -> str:
        """How many pairs agree exactly."""
        return f"{sum(pair.equal for pair in self.pairs)} of {len(self.pairs)}"


def memory_pairs(records: Sequence[Record]) -> list[Pair]:
    """Return, of each moment of each row's largest rank, the bytes of all categories that have a formula."""
    found = []
    for record in records:
        for point in record.memory.largest.points if record.memory else []:
            if point.predicted:
                counted = sum(point.bytes.get(name, 0) for name in point.predicted)
                expected = sum(point.predicted.values())
                found.append(Pair(record.cell.strategy_name, expected, counted, expected == counted))
    return found


def traffic_pairs(records: Sequence[Record]) -> list[Pair]:
    """Return the bytes of each row's collectives (larger side) on rank 0 or the emulated rank."""
    found = []
    for record in records:
        if record.comm and record.practice:
            expected, counted = practice_volumes(record.practice), measured_volumes(record.comm)
            sums = sum(expected.values()), sum(counted.values())
            found.append(Pair(record.cell.strategy_name, *sums, expected == counted))
    return found


def _predicted(records: Sequence[Record], provenance: str) -> list[Panel]:
    rows = [record for record in records if record.provenance == provenance and record.presentable]
    counted = "counted on real ranks" if provenance == "measured" else "counted on an emulated rank"
    panels = [
        Panel("Memory at each moment", "predicted (bytes)", f"{counted} (bytes)", memory_pairs(rows)),
        Panel("Traffic of one step", "predicted (bytes)", f"{counted} (bytes)", traffic_pairs(rows)),
    ]
    return [panel for panel in panels if panel.pairs]


def _emulated(records: Sequence[Record]) -> list[Panel]:
    peaks, moved = [], []
    for measured, emulated in pairs(records):
        assert measured.memory and emulated.memory and measured.comm and emulated.comm  # noqa: PT018
        assert emulated.emulation and emulated.cell.emulation  # noqa: PT018
        rank, name = emulated.cell.emulation.rank, emulated.cell.strategy_name
        here, there = measured.memory.ranks[rank], emulated.memory.ranks[0]
        # CUDA's allocator counts whole blocks, and so does its model.
        blocks = here.peak_reserved_bytes is not None
        peak = emulated.emulation.allocator.peak_allocated_bytes if blocks else there.peak_allocated_bytes
        peaks.append(Pair(name, here.peak_allocated_bytes, peak, here.peak_allocated_bytes == peak))
        sums = measured.comm.comm_bytes_per_step_by_rank[rank], emulated.comm.comm_bytes_per_step_by_rank[0]
        moved.append(Pair(name, *sums, sums[0] == sums[1]))
    if not peaks:
        return []
    axes = "measured (bytes)", "emulated (bytes)"
    return [Panel("Peak memory of the same rank", *axes, peaks), Panel("Traffic of one step", *axes, moved)]


def comparisons(records: Sequence[Record], looks: Mapping[str, Look]) -> list[Plot]:
    """Return predicted against measured, predicted against emulated, emulated against measured; each if it has rows."""
    found = []
    for provenance in ("measured", "emulated"):
        if panels := _predicted(records, provenance):
            counts = "; ".join(f"{panel.title.lower()}: {panel.count} equal to the byte" for panel in panels)
            caption = (
                f"Predicted from DeepSpeed's code (modelled: bench/zero/memory.py, bench/zero/practice.py) against "
                f"{provenance} rows of all groups; {counts}. Memory: the largest rank at {_MOMENTS}, summed over the "
                "categories that have a formula. Traffic: larger side of all collectives; equal means by phase, "
                f"operation and dtype too. On the diagonal both are the same.{_silent(panels)}"
            )
            title = f"Predicted against {provenance}"
            found.append(Plot(f"predicted-{provenance}", title, caption, partial(_draw, panels, dict(looks))))
    if panels := _emulated(records):
        counts = "; ".join(f"{panel.title.lower()}: {panel.count} equal to the byte" for panel in panels)
        caption = (
            f"The same cell, emulated and measured on real ranks, the same rank of both; {counts}. On CUDA the "
            f"modelled allocator's figure stands for the emulated peak. On the diagonal both are the same."
            f"{_silent(panels)}"
        )
        found.append(
            Plot("emulated-measured", "Emulated against measured", caption, partial(_draw, panels, dict(looks)))
        )
    return found


_MOMENTS = "five moments (init, forward, backward, step, peak)"


def _silent(panels: Sequence[Panel]) -> str:
    count = sum(not (pair.across and pair.up) for panel in panels for pair in panel.pairs)
    return f" Not on log axes: {count} with 0 bytes." if count else ""


def _draw(panels: Sequence[Panel], looks: Mapping[str, Look]) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, 4.3), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        _panel(axes, panel, looks)
    names = in_order(pair.strategy for panel in panels for pair in panel.pairs)
    handles: list[Artist] = [
        Line2D([], [], linestyle="none", label=plain(name), **marker(looks[name], None, [None], hollow=False))  # type: ignore[arg-type]
        for name in names
    ]
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="equal"))
    legend(figure, handles, columns=5)
    return figure


def _panel(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    drawn = [pair for pair in panel.pairs if pair.across and pair.up]
    sides = [side for pair in drawn for side in (pair.across, pair.up)] or [1.0]
    low, high = min(sides) / 1.6, max(sides) * 1.6
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    for name in in_order(pair.strategy for pair in drawn):
        # Of pairs that would be drawn on each other, one.
        places = {(float(f"{p.across:.3g}"), float(f"{p.up:.3g}")): None for p in drawn if p.strategy == name}
        style = marker(looks[name], None, [None], hollow=False) | {"markersize": 6, "alpha": 0.8}
        axes.plot(*zip(*places, strict=True), linestyle="none", zorder=3, **style)  # type: ignore[arg-type]
    ticks = _log_ticks(low, high)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=panel.across, ylabel=panel.up)
    axes.set_xticks(ticks, [_round(tick) for tick in ticks], minor=False)
    axes.set_yticks(ticks, [_round(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set_aspect("equal")
    axes.grid(axis="both")
    axes.set_title(f"{panel.title}\n{panel.count} equal to the byte")


def _log_ticks(low: float, high: float) -> list[float]:
    """Return at most five powers of two between the two, evenly spaced."""
    for step in (1, 2, 3, 5, 10, 20):
        found = [2.0**power for power in range(0, 60, step) if low <= 2.0**power <= high]
        if len(found) <= 5:
            return found
    return found


def _round(value: float) -> str:
    text = size(value)
    number, unit = text.split()
    return f"{float(number.replace(',', '')):g} {unit}"
