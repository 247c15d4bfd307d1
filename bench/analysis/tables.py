"""Comparison tables: strategies down, GPU counts across, one table per model and metric.

A table holds the lines of one group of bench.analysis.comparison. A failure stands in its place as a word.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd
from tabulate import tabulate

from bench.analysis.comparison import SAME, in_order
from bench.analysis.explain import explanations
from bench.analysis.titles import Line, plain
from bench.analysis.units import mib
from bench.record import Record


@dataclass(frozen=True)
class Metric:
    """What a table shows: a column of the frame, how to write it, and what it means."""

    title: str
    unit: str
    column: str
    write: Callable[[float], str]
    definition: str
    theory: str | None = None
    third: str = "paper"
    only: str | None = None  # the provenance of the rows that have it


@dataclass(frozen=True)
class Table:
    """Text, ready to be laid out. ``group`` names the settings that all rows share, ``title`` the metric.

    ``explained`` are the sentences that belong below it; ``wraps``: its cells are words, which may be folded;
    ``block``: how many columns after the first belong together, where a wide table is cut.
    """

    group: str
    title: str
    header: list[str]
    rows: list[list[str]]
    explained: list[str] = field(default_factory=list)
    wraps: bool = False
    block: int = 3


METRICS = (
    Metric(
        "Throughput",
        "tokens/s per GPU",
        "tokens_per_second_per_gpu",
        lambda value: f"{value:,.0f}",
        "tokens per second per GPU = train_batch_size x seq_length / step_time_s / N; step_time_s is the median "
        "over the timed optimizer steps of the slowest rank's synchronised wall time. 'ms' is that median with "
        "the distance between its quartiles",
        third="ms",
        only="measured",
    ),
    Metric(
        "Peak memory",
        "per GPU",
        "peak_allocated_bytes",
        mib,
        "highest allocated bytes on any one rank (or the emulated one) during one settled optimizer step (counting "
        "pass); 1 MiB = 1024^2 bytes. 'paper' is parameters, gradients and Adam states only (ZeRO paper, table 1)",
        "theory_model_state_bytes",
    ),
    Metric(
        "Reserved memory",
        "per GPU, modelled",
        "modelled_peak_reserved_bytes",
        mib,
        "what PyTorch's CUDA caching allocator would have reserved for these storages, by a model of it "
        "(docs/emulation.md). 'fits' is whether it finds room for all of them in the GPU's memory, of which CUDA and "
        "NCCL take some for themselves",
        third="fits",
        only="emulated",
    ),
    Metric(
        "Traffic",
        "sent per GPU and optimizer step",
        "comm_wire_bytes_per_step",
        mib,
        "bytes that each rank sends per optimizer step: the collectives counted at the dispatcher (control "
        "collectives of at most 8 elements left out) under the backend's wire model. 'paper' is 2 psi (ddp to z2) "
        "or 3 psi (z3, fsdp2) times (N-1)/N, without gradient accumulation (ZeRO paper, section 7). DeepSpeed's stages "
        "1 and 2 all-reduce where the paper reduce-scatters, so they move 3 psi; and gloo's reduce-scatter costs an "
        "all-reduce",
        "theory_comm_wire_bytes_per_step",
    ),
)


def _mark(metric: Metric, line: Line) -> str:
    """Return ``?`` for a number not to be relied on, ``†`` where only the training is doubted."""
    if line["figures_suspect"] or (metric.third == "ms" and line["times_suspect"]):
        return "?"
    return "†" if line["training_suspect"] else ""


def number(line: Line | None, column: str | None) -> float | None:
    """Return a metric of a line, ``None`` where there is none."""
    value = None if line is None or column is None else line.get(column)
    return None if value is None or pd.isna(value) else float(value)


def words(line: Line | None) -> str:
    """Return what became of a cell that has no number to show."""
    if line is None:
        return "not run"
    return line["outcome"] if line["launches"] == 0 else "not known"


def failures(line: Line) -> str:
    """Return how many launches are not in the number, in brackets; ``""`` where all are."""
    failed, total = line["launches_failed"], line["launches_failed"] + line["launches"]
    return f" ({failed} of {total} {line['outcome']})" if failed else ""


def _entry(metric: Metric, line: Line | None, base: Line | None) -> list[str]:
    """Return number (or word), ratio to the base, and the metric's third column, for one cell."""
    value, beside = number(line, metric.column), number(base, metric.column)
    theory = number(line, metric.theory)
    if line is None or value is None:
        shown = [words(line), ""]
    else:
        mark = _mark(metric, line)
        doubt = "?" if "?" in (mark, _mark(metric, base) if base else "") else ""
        shown = [metric.write(value) + mark + failures(line), f"{value / beside:.2f}x{doubt}" if beside else ""]
    if metric.third == "fits":
        return [*shown, "" if line is None or value is None else "yes" if line["fits"] else "no"]
    if metric.theory:
        return [*shown, "" if theory is None else metric.write(theory)]
    step, spread = number(line, "step_time_s"), number(line, "step_time_iqr_s")
    return [*shown, "" if step is None or spread is None else f"{step * 1e3:,.0f} ± {spread * 1e3:,.0f}"]


def names_of(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return strategy and variant of the rows of a table, in their order."""
    found = dict.fromkeys((line["strategy"], line["variant"]) for line in lines)
    return [(name, variant) for name in in_order(name for name, _ in found) for at, variant in found if at == name]


def first_column(lines: Sequence[Line]) -> str:
    """Return what the rows of a table are named by."""
    stacked = any(not pd.isna(line["requested_stack"]) for line in lines)
    several = len({line.get("run") for line in lines}) > 1
    return ", ".join(["strategy"] + (["stack"] if stacked else []) + (["run"] if several else []))


def _table(metric: Metric, lines: Sequence[Line], explained: list[str]) -> Table:
    counts = sorted({line["world_size"] for line in lines})
    header = [first_column(lines)]
    header += [name for n in counts for name in (f"N={n}", f"vs {lines[0]['base']}", metric.third)]
    by_number = {line["line"]: line for line in lines}
    at = {(line["strategy"], line["variant"], line["world_size"]): line for line in lines}
    rows = []
    for strategy, variant in names_of(lines):
        row = [f"{strategy} {variant}".strip()]
        for n in counts:
            line = at.get((strategy, variant, n))
            row += _entry(metric, line, by_number.get(line["base_line"]) if line else None)
        rows.append(row)
    return Table(lines[0]["group"], f"{metric.title} ({metric.unit})", header, rows, explained)


def metrics_of(provenances: Iterable[str]) -> list[Metric]:
    """Return the metrics that rows of these provenances can have."""
    found = set(provenances)
    return [metric for metric in METRICS if metric.only is None or metric.only in found]


def groups(lines: pd.DataFrame, view: str = SAME) -> list[list[Line]]:
    """Return the groups of one view of a comparison, each as plain lines; what is missing is ``None`` in them."""
    found: dict[int, list[Line]] = {}
    for line in plain(lines[lines["view"] == view]):
        found.setdefault(line["group_number"], []).append(line)
    return [found[number] for number in sorted(found)]


def tables(lines: pd.DataFrame, records: Sequence[Record] = ()) -> list[Table]:
    """Return the tables of the same global batch, one per group and metric: strategies down, GPU counts across.

    ``lines`` are those of bench.analysis.comparison. ``records``, if given, are what they were made from: then the
    tables carry what explains them.
    """
    of: dict[tuple[str, str | None], list[Record]] = {}
    for record in records:
        of.setdefault((record.cell_id, record.requested_stack), []).append(record)
    found = []
    for group in groups(lines):
        cells = [
            (line["cell_id"], None if pd.isna(line["requested_stack"]) else line["requested_stack"]) for line in group
        ]
        said = explanations([record for cell in cells for record in of[cell]], records) if records else []
        for metric in metrics_of(line["provenance"] for line in group):
            below = [explanation.text for explanation in said if explanation.rule.table == metric.title]
            found.append(_table(metric, group, below))
    return found


def one_line(text: str) -> str:
    """Return a text from outside, such as a reason, so that it ends no line of a Markdown list or table."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def as_cells(row: Iterable[str]) -> list[str]:
    """Return texts so that each is one cell of a Markdown table."""
    return [one_line(text).replace("|", "\\|") for text in row]


def markdown(found: Iterable[Table], notes: Iterable[str]) -> str:
    """Lay tables and notes out as Markdown."""
    parts: list[str] = []
    heading = ""
    for table in found:
        aligned = ("left", *["right"] * (len(table.header) - 1))
        rows, header = [as_cells(row) for row in table.rows], as_cells(table.header)
        body = tabulate(rows, header, "pipe", colalign=aligned, disable_numparse=True)
        if table.group != heading:
            heading = table.group
            parts.append(f"## {one_line(heading)}\n")
        parts.append(f"### {one_line(table.title)}\n\n{body}\n")
        parts += [f"> {one_line(sentence)}\n" for sentence in table.explained]
    return "\n".join(parts) + "\n" + "\n".join(f"- {one_line(note)}" for note in notes) + "\n"
