"""Comparison tables: strategies down, GPU counts across, one table per model and metric.

A table holds only rows that are equal in everything but strategy, GPU count and, where a scenario asks for stacks,
stack (bench.analysis.stacks). Repeats of one cell are combined by their median; different cells are never averaged. A
failure stands in its place as a word.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bench.analysis.explain import explanations
from bench.analysis.frame import CONTROLS
from bench.analysis.stacks import stack_names
from bench.analysis.units import mib
from bench.record import Record
from bench.zero.stages import strategy_names

BASELINE = "z0"


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

    ``explained`` are the sentences that belong below it; ``wraps``: its cells are words, which may be folded.
    """

    group: str
    title: str
    header: list[str]
    rows: list[list[str]]
    explained: list[str] = field(default_factory=list)
    wraps: bool = False


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


def in_order(names: Iterable[str]) -> list[str]:
    """Return the strategies of ``names``, each once: stages in their order, files as they come after them."""
    found, known = list(dict.fromkeys(names)), strategy_names()
    # A variant with a key of several values is called "z2+overlap_comm=true".
    place = {name: known.index(base) for name in found if (base := name.split("+")[0]) in known}
    return sorted(found, key=lambda name: place.get(name, len(known)))


def presentable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose numbers may be shown: completed, and not known to be wrong."""
    return rows[(rows["status"] == "completed") & (rows["validity"] != "invalid")]


def _combined(rows: pd.DataFrame, column: str) -> float | None:
    """Return the median over the repeats of one cell, ``None`` when none of them has the number."""
    if column not in rows or rows[column].isna().all():
        return None
    return float(rows[column].median())


def _mark(metric: Metric, good: pd.DataFrame) -> str:
    """Return ``?`` for a number not to be relied on, ``†`` where only the training is doubted."""
    late = (
        metric.third == "ms" and "timing_suspect_reasons" in good and good["timing_suspect_reasons"].astype(bool).any()
    )
    if late or good["figures_suspect"].any():
        return "?"
    return "†" if "suspect" in set(good["validity"]) else ""


def _entry(metric: Metric, rows: pd.DataFrame, baseline: pd.DataFrame) -> list[str]:
    """Return number (or word), ratio to the baseline, and the metric's third column, for one cell's repeats."""
    assert rows["cell_id"].nunique() <= 1, "different cells are never combined"
    good, bad = presentable(rows), rows.drop(presentable(rows).index)
    # A row that is completed and yet not good is invalid; that is the word for it.
    words = "/".join(dict.fromkeys(bad["status"].replace("completed", "invalid"))) or "not run"
    value = _combined(good, metric.column)
    theory = _combined(rows, metric.theory) if metric.theory else None
    if value is None:
        shown = [words, ""]
    else:
        mark, base = _mark(metric, good), _combined(baseline, metric.column)
        doubt = "?" if "?" in (mark, _mark(metric, baseline)) else ""
        some = f" ({len(bad)} of {len(rows)} {words})" if len(bad) else ""
        shown = [metric.write(value) + mark + some, f"{value / base:.2f}x{doubt}" if base else ""]
    if metric.third == "fits":
        return [*shown, "" if value is None else "yes" if good["fits"].all() else "no"]
    if metric.theory:
        return [*shown, "" if theory is None else metric.write(theory)]
    step, spread = _combined(good, "step_time_s"), _combined(good, "step_time_iqr_s")
    return [*shown, "" if step is None or spread is None else f"{step * 1e3:,.0f} ± {spread * 1e3:,.0f}"]


def _table(metric: Metric, title: str, group: pd.DataFrame, explained: list[str]) -> Table:
    counts = sorted(group["world_size"].unique())
    present = in_order(group["strategy"])
    baseline = BASELINE if BASELINE in present else present[0]
    stacked = bool(group["requested_stack"].notna().any())
    header = ["strategy, stack" if stacked else "strategy"]
    header += [name for n in counts for name in (f"N={n}", f"vs {baseline}", metric.third)]
    names = stack_names(group)
    rows = []
    for strategy in present:
        for stack in names[group["strategy"] == strategy].unique():
            row = [f"{strategy} {stack}" if stacked else strategy]
            for n in counts:
                column = group[(group["world_size"] == n) & (names == stack)]
                first = presentable(column[column["strategy"] == baseline])
                row += _entry(metric, column[column["strategy"] == strategy], first)
            rows.append(row)
    return Table(title, f"{metric.title} ({metric.unit})", header, rows, explained)


def _trained(values: dict[str, Any], group: pd.DataFrame) -> str:
    """Return in words what is trained, where that is not all."""
    fraction = group["trainable_fraction"].dropna()
    share = f" ({fraction.iloc[0]:.2%} trained)" if len(fraction) else ""
    if values["finetuning"] == "lora":
        return f"LoRA of rank {json.loads(values['lora'])['r']}{share}"
    return f"all frozen but {', '.join(json.loads(values['freeze'])['trainable'])}{share}"


def how_it_trains(values: dict[str, Any], group: pd.DataFrame) -> list[str]:
    """Return in words the controls that most tables leave at their defaults."""
    parts = []
    if values["activation_checkpointing"]:
        reentrant = values["activation_checkpointing"] == "reentrant"
        parts.append("reentrant activation checkpointing" if reentrant else "activation checkpointing")
    if values["finetuning"] != "full":
        parts.append(_trained(values, group))
    if isinstance(values["attn_implementation"], str):  # pandas has a number for what is not there
        parts.append(f"{values['attn_implementation']} attention")
    return parts + ([values["emulation"]] if values["emulation"] else [])


def params_text(group: pd.DataFrame) -> str:
    """Return the size of the model in brackets; nothing where no row knows it."""
    size = group["num_params"].dropna()
    return f" ({size.iloc[0] / 1e6:,.1f}M parameters)" if len(size) else ""


def _title(values: dict[str, Any], group: pd.DataFrame) -> str:
    batch = sorted(group["train_batch_size"].unique())
    steps = sorted(group["gradient_accumulation_steps"].unique())
    parts = [
        f"{values['model']}{params_text(group)}",
        f"micro batch {values['train_micro_batch_size_per_gpu']}",
        f"GAS {'/'.join(map(str, steps))}",
        f"global batch {'/'.join(map(str, batch))}",
        f"seq {values['seq_length']}",
        values["dtype"],
        f"{values['data']} data",
    ]
    parts += how_it_trains(values, group)
    if group["requested_stack"].notna().any():
        parts.append("stacks side by side")
    return ", ".join(parts)


def metrics_of(frame: pd.DataFrame) -> list[Metric]:
    """Return the metrics that rows of this provenance can have."""
    return [metric for metric in METRICS if metric.only is None or metric.only in set(frame["provenance"])]


def tables(frame: pd.DataFrame, batch_key: str, records: Sequence[Record] = ()) -> list[Table]:
    """Return the tables of a run, in the order in which its settings first appear.

    ``batch_key`` is what stays equal across GPU counts besides the micro batch: ``gradient_accumulation_steps``,
    or ``train_batch_size`` where the scenario fixes that. ``records``, if given, are those of the frame, in its
    order: then the tables carry what explains them.
    """
    keys = [*CONTROLS, batch_key]
    found = []
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        title = _title(dict(zip(keys, values, strict=True)), group)
        said = explanations([records[row] for row in group.index], records) if records else []
        for metric in metrics_of(group):
            below = [explanation.text for explanation in said if explanation.rule.table == metric.title]
            found.append(_table(metric, title, group, below))
    return found


def markdown(found: Iterable[Table], notes: Iterable[str]) -> str:
    """Lay tables and notes out as Markdown."""
    parts: list[str] = []
    heading = ""
    for table in found:
        body = pd.DataFrame(table.rows, columns=pd.Index(table.header))
        aligned = ("left", *["right"] * (len(table.header) - 1))
        if table.group != heading:
            heading = table.group
            parts.append(f"## {heading}\n")
        parts.append(f"### {table.title}\n\n{body.to_markdown(index=False, colalign=aligned, disable_numparse=True)}\n")
        parts += [f"> {sentence}\n" for sentence in table.explained]
    return "\n".join(parts) + "\n" + "\n".join(f"- {note}" for note in notes) + "\n"
