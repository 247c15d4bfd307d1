"""What a step's wall time holds, as far as a timed pass without instruments can tell: CPU time and the rest."""

from functools import partial

from matplotlib.figure import Figure

from bench.plots import captions
from bench.plots.axes import Bar, chosen, draw_bars, fill_handles, legend, not_shown, panels, ticks
from bench.plots.groups import Entry, Group
from bench.plots.plot import Plot
from bench.plots.style import BLUE, ORANGE, Fill
from bench.record import Record

CPU, REST = "CPU time of the thread that drives the step", "the rest: waiting, and other threads"
_FILLS = {CPU: Fill(BLUE), REST: Fill(ORANGE, "//")}


def median_step(record: Record) -> tuple[float, float] | None:
    """Return wall time and thread CPU time of one step, in seconds: of the slowest rank in the step of median time.

    Of an even number of steps the lower of the middle two, so that both times are of one step.
    """
    timing = record.timing
    if timing is None or not timing.step_times_s or not timing.step_thread_cpu_times_s:
        return None
    steps = []
    for walls, cpus in zip(
        zip(*timing.step_times_s, strict=True), zip(*timing.step_thread_cpu_times_s, strict=True), strict=True
    ):
        rank = walls.index(max(walls))
        steps.append((walls[rank], cpus[rank]))
    return sorted(steps)[(len(steps) - 1) // 2]


def _wall(record: Record) -> float | None:
    found = median_step(record)
    return found and found[0]


def bar(entry: Entry) -> Bar:
    """Return the bar, in milliseconds, of the launch whose median step is the median."""
    record = entry.middle(_wall)
    found = median_step(record) if record else None
    if found is None:
        return Bar(entry.name, {}, word=entry.words or "not timed")
    wall, cpu = (value * 1e3 for value in found)
    walls = [value * 1e3 for each in entry.good if (value := _wall(each)) is not None]
    note = f"{wall:,.1f} ms, {min(cpu / wall, 1):.0%} CPU{captions.doubt(entry, timed=True)}"
    return Bar(
        entry.name, {CPU: min(cpu, wall), REST: max(0.0, wall - cpu)}, note=note, spread=(min(walls), max(walls))
    )


def plot(group: Group) -> Plot | None:
    """Return the plot of a group; ``None`` where no row was timed."""
    counts = chosen(group.counts)
    rows = [[bar(entry) for entry in group.at(n)] for n in counts]
    if not any(each.parts for row in rows for each in row):
        return None
    timed = [entry for entry in group.entries if any(_wall(record) is not None for record in entry.good)]
    caption = captions.joined(
        captions.provenance(group, "Wall time of the median step, on the rank that was slowest in it"),
        "The timed pass has no instrument inside a step, so forward, backward and update are not told apart. What is "
        "known is the CPU time of the thread that drives the step; the rest is waiting (for other ranks, messages, a "
        "core) and work of other threads, those of communication among them.",
        "On a GPU the driving thread is busy launching kernels and waiting for them: its share says nothing of the GPU."
        if group.per == "GPU"
        else "",
        captions.launches(timed),
        captions.of_launches(timed, "step time"),
        captions.suspects(group, timed, timed=True, how="With '?'"),
        captions.missing(group),
        not_shown(group.counts, counts),
    )
    return Plot("step-breakdown", f"Step breakdown: {group.name}", caption, partial(_draw, counts, rows))


def _draw(counts: list[int], rows: list[list[Bar]]) -> Figure:
    highest = max(max(each.total, *(each.spread or (0, 0))) for row in rows for each in row)
    figure, found = panels(rows)
    for axes, n, row in zip(found, counts, rows, strict=True):
        axes.set_title(f"N = {n}")
        draw_bars(axes, row, _FILLS, "median step")
    found[-1].set_xlim(0, highest * 1.04)
    places = ticks(highest * 1.04)
    found[-1].set_xticks(places, [f"{place:,g}" for place in places])
    found[-1].set_xlabel("time of the median step (ms)")
    legend(figure, fill_handles(_FILLS))
    return figure
