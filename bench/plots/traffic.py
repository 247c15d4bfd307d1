"""What a rank sends in one optimizer step, by operation and phase, with the paper's figure and DeepSpeed's practice."""

from collections import Counter
from functools import partial

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
from bench.plots.groups import Entry, Group
from bench.plots.plot import Plot
from bench.plots.style import op_fill
from bench.record import Record
from bench.zero.practice import CONTROL_ELEMENTS

_PHASES = ("forward", "backward", "step")
_SEPARATOR = ": "


def sent_bytes(record: Record) -> float | None:
    """Return what rank 0, or the emulated rank, sends in one step."""
    return None if record.comm is None else record.comm.comm_wire_bytes_per_step


def parts(record: Record) -> dict[str, float]:
    """Return the bytes sent by ``phase: operation``; control collectives are left out."""
    sums: Counter[str] = Counter()
    for row in record.comm.collectives if record.comm else []:
        if row.num_elements > CONTROL_ELEMENTS and row.wire_bytes:
            sums[f"{row.phase}{_SEPARATOR}{row.op}"] += row.wire_bytes * row.count  # type: ignore[assignment]
    return dict(sums)


def bar(entry: Entry) -> Bar:
    """Return the bar of the launch whose traffic is the median."""
    record = entry.middle(sent_bytes)
    if record is None:
        unknown = any(each.comm is not None for each in entry.good)
        return Bar(entry.name, {}, word="an operation is unknown to the wire model" if unknown else entry.words)
    marks: dict[str, float] = {}
    if record.theory is not None:
        marks["paper"] = record.theory.comm_wire_bytes_per_step
    if record.practice is not None and record.practice.comm_wire_bytes_per_step is not None:
        marks["practice"] = record.practice.comm_wire_bytes_per_step
    sent = [found for each in entry.good if (found := sent_bytes(each)) is not None]
    note = size(sent_bytes(record) or 0) + captions.doubt(entry)
    return Bar(entry.name, parts(record), marks=marks, note=note, spread=(min(sent), max(sent)))


def _place(part: str) -> tuple[int, str]:
    phase, _, op = part.partition(_SEPARATOR)
    return (_PHASES.index(phase) if phase in _PHASES else len(_PHASES)), op


def plot(group: Group) -> Plot | None:
    """Return the plot of a group; ``None`` where no row sends anything."""
    bars = {n: [bar(entry) for entry in group.at(n)] for n in group.counts}
    silent = [n for n, row in bars.items() if not any(each.parts for each in row)]
    sending = [n for n in group.counts if n not in silent]
    if not sending:
        return None
    counts = chosen(sending)
    rows = [bars[n] for n in counts]
    entries = [entry for entry in group.entries if entry.world_size in sending]
    comm = next(record.comm for entry in entries for record in entry.good if record.comm)
    shown = [each for row in rows for each in row]
    caption = captions.joined(
        captions.provenance(group, f"Bytes that a {group.per} sends in one settled optimizer step"),
        f"Collectives counted at the dispatcher, of rank {_rank(group)}, under the wire model of {comm.wire_model}; "
        f"those of at most {CONTROL_ELEMENTS} elements are left out.",
        "Paper (theory): 2 psi, with sharded parameters 3 psi, times (N-1)/N, without gradient accumulation "
        "(ZeRO, section 7)."
        if any("paper" in each.marks for each in shown)
        else "",
        "Practice: what DeepSpeed's code, as read, sends (bench/zero/practice.py)."
        if any("practice" in each.marks for each in shown)
        else "",
        f"Nothing is sent at N = {', '.join(map(str, silent))}." if silent and 1 in silent else "",
        captions.launches(entries),
        captions.of_launches(entries, "traffic"),
        captions.suspects(group, entries, timed=False, how="With '?'"),
        captions.missing(group),
        not_shown(sending, counts),
    )
    title = f"Traffic by operation and phase: {group.name}"
    return Plot("traffic", title, caption, partial(_draw, group, counts, rows))


def _rank(group: Group) -> int:
    return group.first.cell.emulation.rank if group.first.cell.emulation else 0


def _draw(group: Group, counts: list[int], rows: list[list[Bar]]) -> Figure:
    bars = [each for row in rows for each in row]
    highest = max(max([each.total, *each.marks.values()]) for each in bars)
    names = sorted({name for each in bars for name in each.parts}, key=_place)
    fills = {}
    for name in names:
        phase, _, op = name.partition(_SEPARATOR)
        fills[name] = op_fill(phase, op)
    figure, found = panels(rows)
    for axes, n, row in zip(found, counts, rows, strict=True):
        axes.set_title(f"N = {n}")
        draw_bars(axes, row, fills, "sent")
    bytes_axis(found[-1], highest, f"sent per {group.per} and optimizer step", room=1.04)
    marks = {"paper": "paper (theory)", "practice": "DeepSpeed's practice (predicted)"}
    present = {name: words for name, words in marks.items() if any(name in each.marks for each in bars)}
    legend(figure, [*fill_handles(fills), *mark_handles(present)], columns=3)
    return figure
