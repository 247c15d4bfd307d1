"""What holds the memory of the largest rank at its peak, with the paper's figure and the GPU's capacity."""

from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import captions
from bench.plots.axes import (
    Bar,
    bytes_axis,
    chosen,
    draw_bars,
    fill_handles,
    legend,
    mark_handles,
    not_shown,
    panels,
    size,
)
from bench.plots.capacity import capacity, line_text
from bench.plots.groups import Entry, Group
from bench.plots.plot import Plot
from bench.plots.style import CATEGORY_FILLS, INK
from bench.record import MemoryPoint, Record

WHOLE = "not decomposed"
REST = "other"
# What holds less than this share of the highest bar in every bar is drawn as one part.
_SMALL = 0.01


def peak_bytes(record: Record) -> int | None:
    """Return the highest allocated bytes on any one rank."""
    return None if record.memory is None else record.memory.peak_allocated_bytes


def peak_point(record: Record) -> MemoryPoint | None:
    """Return what holds the memory of the largest rank at its peak; ``None`` where it was not decomposed."""
    points = record.memory.largest.points if record.memory else []
    return next((point for point in points if point.point == "peak"), None)


def _reserved(record: Record) -> int | None:
    if record.emulation is not None:
        return record.emulation.allocator.peak_reserved_bytes
    found = [rank.peak_reserved_bytes for rank in record.memory.ranks] if record.memory else []
    return max((value for value in found if value is not None), default=None)


def _parts(record: Record) -> dict[str, float]:
    point = peak_point(record)
    if point is None:
        return {WHOLE: peak_bytes(record) or 0}
    known = dict.fromkeys(CATEGORY_FILLS, 0.0)
    for name, held in point.bytes.items():
        known[name if name in known else REST] += held
    return {name: held for name, held in known.items() if held}


def bar(entry: Entry, per: str) -> Bar:
    """Return the bar of the launch whose peak is the median; its parts sum to the peak's bytes exactly."""
    record = entry.middle(peak_bytes)
    if record is None:
        return Bar(entry.name, {}, word=entry.words or "not run")
    marks: dict[str, float] = {}
    if record.theory is not None:
        marks["paper"] = record.theory.model_state_bytes
    if (reserved := _reserved(record)) is not None:
        marks["reserved"] = reserved
    parts = _parts(record)
    peaks = [found for each in entry.good if (found := peak_bytes(each)) is not None]
    point, note = peak_point(record), size(sum(parts.values())) + captions.doubt(entry)
    if reserved is not None:
        note += f" ({size(reserved)})"
    if record.emulation is not None and not record.emulation.fits:
        note += ", does not fit"
    host = sum(point.host_bytes.values()) if point else 0
    if host and record.cell.emulation is not None and record.cell.emulation.apart:
        note += f"\nhost {size(host)}"
    return Bar(entry.name, parts, marks=marks, note=note, spread=(min(peaks), max(peaks)))


def _merged(bars: list[Bar]) -> tuple[list[Bar], list[str]]:
    """Return the bars with their small parts as one, and the names of those."""
    highest = max(each.total for each in bars)
    names = list(dict.fromkeys(name for each in bars for name in each.parts))
    small = [n for n in names if n != REST and all(each.parts.get(n, 0) < _SMALL * highest for each in bars)]
    found = []
    for each in bars:
        parts = {name: held for name, held in each.parts.items() if name not in small}
        rest = sum(held for name, held in each.parts.items() if name in small)
        if rest:
            parts[REST] = parts.get(REST, 0) + rest
        found.append(replace(each, parts=parts))
    return found, small


def plot(group: Group) -> Plot | None:
    """Return the plot of a group; ``None`` where no row has memory."""
    counts = chosen(group.counts)
    rows = [[bar(entry, group.per) for entry in group.at(n)] for n in counts]
    flat = [each for row in rows for each in row]
    if not any(each.parts for each in flat):
        return None
    flat, small = _merged(flat)
    merged = [[flat.pop(0) for _ in row] for row in rows]
    merged_all = [each for row in merged for each in row]
    words = [name.replace("_", " ") for name in small]
    point = any(peak_point(record) for entry in group.entries for record in entry.good)
    kind = next(record.memory.kind for entry in group.entries for record in entry.good if record.memory)
    emulated = group.emulated
    which = "the emulated rank" if emulated else "the rank with the highest peak"
    caption = captions.joined(
        captions.provenance(group, f"Memory of {which} at its highest moment of one settled optimizer step ({kind})"),
        "Parts sum to the peak exactly." if point else "The allocator's count is not decomposed.",
        f"'other' holds what is below 1 % in every bar too: {', '.join(words)}." if words else "",
        "Paper (theory): parameters, gradients and Adam states only (ZeRO, table 1)."
        if any("paper" in each.marks for each in merged_all)
        else "",
        "Reserved: modelled, what PyTorch's CUDA caching allocator would hold for these storages; that decides "
        "whether a row fits."
        if emulated
        else "Reserved: what the caching allocator held, measured."
        if any("reserved" in each.marks for each in merged_all)
        else "",
        "Host: what offload keeps in host memory, outside the bars."
        if any("\nhost" in each.note for each in merged_all)
        else "",
        line_text(group),
        captions.launches(group.entries),
        captions.of_launches(group.entries, "peak"),
        captions.suspects(group, group.entries, timed=False, how="With '?'"),
        captions.missing(group),
        not_shown(group.counts, counts),
    )
    return Plot("memory", f"Memory by component: {group.name}", caption, partial(_draw, group, counts, merged))


def _capacity(axes: Axes, room: tuple[float, str], limit: float, *, named: bool) -> None:
    value, words = room
    if value <= limit:
        axes.axvline(value, color=INK, linestyle=(0, (4, 2)), linewidth=1.3, gid="capacity", zorder=3)
        if named:
            axes.annotate(
                f"{words}: {size(value)}",
                (value, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right" if value > limit * 0.6 else "left",
                fontsize=8,
            )
    elif named:
        axes.annotate(
            f"{words}: {size(value)}, {value / limit:,.0f} times as far right →",
            (1, 1),
            xycoords="axes fraction",
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )


def _draw(group: Group, counts: list[int], rows: list[list[Bar]]) -> Figure:
    bars = [each for row in rows for each in row]
    highest = max(max(each.total, each.marks.get("paper", 0)) for each in bars)
    reserved = any("reserved" in each.marks for each in bars)
    # An allocator takes whole segments: beside a small model they would be all there is to see.
    near = 2 * highest
    rows = [[replace(each, marks={n: v for n, v in each.marks.items() if v <= near}) for each in row] for row in rows]
    bars = [each for row in rows for each in row]
    highest = max([highest, *(value for each in bars for value in each.marks.values())])
    room = capacity(group.first)
    if room and highest < room[0] <= 3 * highest:
        highest = room[0]
    fills = {name: fill for name, fill in CATEGORY_FILLS.items() if any(each.parts.get(name) for each in bars)}
    figure, found = panels(rows)
    for axes, n, row in zip(found, counts, rows, strict=True):
        axes.set_title(f"N = {n}")
        draw_bars(axes, row, fills, "peak (reserved)" if reserved else "peak")
        if room:
            _capacity(axes, room, highest * 1.04, named=axes is found[0])
    bytes_axis(found[-1], highest, f"peak memory per {group.per}", room=1.04)
    marks = {
        "paper": "paper's model states (theory)",
        "reserved": "reserved, modelled" if group.emulated else "reserved, measured",
    }
    present = {name: words for name, words in marks.items() if any(name in each.marks for each in bars)}
    names = {name: name.replace("_", " ") for name in fills}
    legend(figure, [*fill_handles(fills, names), *mark_handles(present)])
    return figure
