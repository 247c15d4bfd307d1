"""What several plots draw alike: panels per GPU count, stacked bars with a name each, axes of bytes, legends."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.plots.style import EDGE, INK, Fill

WIDTH_IN = 7.2
MOST_PANELS = 6
_ROW_IN = 0.27


def unit_of(highest: float) -> tuple[int, str]:
    """Return the binary unit that ``highest`` bytes are written in."""
    for exponent, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if highest >= 2**exponent:
            return 2**exponent, name
    return 1, "B"


def size(value: float) -> str:
    """Write bytes with three digits."""
    scale, name = unit_of(value)
    number = value / scale
    return f"{number:,.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f} {name}"


def ticks(highest: float, count: int = 6) -> list[float]:
    """Return round values from 0 to at most ``highest``."""
    return [
        float(tick)
        for tick in MaxNLocator(nbins=count, steps=[1, 2, 5, 10]).tick_values(0, highest)
        if 0 <= tick <= highest * 1.0001
    ]


def bytes_axis(axes: Axes, highest: float, label: str, *, vertical: bool = False, room: float = 1.0) -> None:
    """Lay out an axis from 0 to ``room`` times ``highest`` bytes; data stay in bytes, its labels are in one unit."""
    scale, name = unit_of(highest)
    places = [tick * scale for tick in ticks(highest * room / scale)]
    written = [f"{place / scale:,g}" for place in places]
    if vertical:
        axes.set_ylim(0, highest * room)
        axes.set_yticks(places, written)
        axes.set_ylabel(f"{label} ({name})")
    else:
        axes.set_xlim(0, highest * room)
        axes.set_xticks(places, written)
        axes.set_xlabel(f"{label} ({name})")


def rate_unit(highest: float) -> tuple[int, str]:
    """Return the unit that up to ``highest`` tokens per second are written in."""
    for scale, words in ((10**6, "million tokens/s"), (10**3, "thousand tokens/s")):
        if highest >= 20 * scale:
            return scale, words
    return 1, "tokens/s"


@dataclass(frozen=True)
class Bar:
    """A bar of parts that follow each other; ``word`` stands in its place where there are none.

    ``marks``: values that are marked on it, by the name of the mark; ``note`` is written behind it; ``spread``: the
    lowest and the highest total of its launches.
    """

    name: str
    parts: Mapping[str, float]
    word: str = ""
    marks: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    spread: tuple[float, float] | None = None

    @property
    def total(self) -> float:
        """Where its last part ends."""
        return sum(self.parts.values())


# Marker and size by name of the mark; hollow, so that what is below stays seen.
MARKS = {
    "paper": ("D", 5.5),
    "practice": ("|", 13),
    "reserved": (">", 7),
}


def panels(rows: Sequence[Sequence[object]]) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel below the other, each as high as it has bars."""
    heights = [max(1, len(row)) * _ROW_IN + 0.12 for row in rows]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.3 * len(rows) + 1.35), layout="constrained")
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)
    return figure, [axes for (axes,) in grid]


def draw_bars(axes: Axes, bars: Sequence[Bar], fills: Mapping[str, Fill], heading: str = "") -> None:
    """Draw bars below each other, the first on top. Parts are in the order of ``fills``; ``heading`` is above notes."""
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0, pad=7)
    behind = axes.get_yaxis_transform()
    if any(bar.note for bar in bars):
        axes.text(1.02, -0.62, heading, transform=behind, va="bottom", ha="left", fontsize=8)
    axes.grid(axis="x")
    for place, bar in enumerate(bars):
        start = 0.0
        for part, fill in fills.items():
            width = bar.parts.get(part, 0)
            if width:
                axes.barh(
                    place,
                    width,
                    left=start,
                    height=0.68,
                    color=fill.colour,
                    hatch=fill.hatch,
                    edgecolor=EDGE,
                    linewidth=0.5,
                    label="_",
                )
                start += width
        for name, value in bar.marks.items():
            marker, points = MARKS[name]
            axes.plot(
                value,
                place,
                marker=marker,
                markersize=points,
                markerfacecolor="white" if marker != "|" else INK,
                markeredgecolor=EDGE if marker != "|" else INK,
                markeredgewidth=1.1 if marker != "|" else 2,
                linestyle="none",
                gid=f"mark-{name}",
                zorder=5,
                clip_on=False,
            )
        if bar.spread and bar.spread[1] > bar.spread[0]:
            axes.hlines(place, *bar.spread, color=INK, linewidth=1.4, zorder=4)
        if bar.word:
            axes.text(0.012, place, bar.word, transform=behind, va="center", ha="left", style="italic", fontsize=8.5)
        elif bar.note:
            axes.text(1.02, place, bar.note, transform=behind, va="center", ha="left", fontsize=8)


def legend(figure: Figure, handles: Sequence[Artist], columns: int = 6) -> None:
    """Put the legend below the panels."""
    labels = [str(handle.get_label()) for handle in handles]
    longest = max((len(label) for label in labels), default=0)
    columns = max(1, min(columns, len(handles), 110 // (longest + 7)))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)


def fill_handles(fills: Mapping[str, Fill], words: Mapping[str, str] | None = None) -> list[Artist]:
    """Return legend entries of parts of bars."""
    return [
        Patch(facecolor=fill.colour, hatch=fill.hatch, edgecolor=EDGE, linewidth=0.5, label=(words or {}).get(n, n))
        for n, fill in fills.items()
    ]


def mark_handles(marks: Mapping[str, str]) -> list[Artist]:
    """Return legend entries of marks, by name and words."""
    found: list[Artist] = []
    for name, words in marks.items():
        marker, points = MARKS[name]
        thin = marker == "|"
        found.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker=marker,
                markersize=points,
                markerfacecolor=INK if thin else "white",
                markeredgecolor=INK if thin else EDGE,
                markeredgewidth=2 if thin else 1.1,
                label=words,
            )
        )
    return found


def chosen(counts: Sequence[int], most: int = MOST_PANELS) -> list[int]:
    """Return at most so many GPU counts, spread over all, the first and the last among them."""
    if len(counts) <= most:
        return list(counts)
    places = np.linspace(0, len(counts) - 1, most).round().astype(int)
    return [counts[place] for place in places]


def not_shown(counts: Iterable[int], shown: Sequence[int]) -> str:
    """Return which GPU counts have no panel, in a sentence."""
    left = [str(n) for n in counts if n not in shown]
    return f"N = {', '.join(left)}: no room here, see the tables." if left else ""
