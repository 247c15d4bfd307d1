"""The ZeRO paper's table 1 beside emulated rows, every difference split into what was measured. Markdown on stdout.

    python scripts/paper_table.py results/runs/zero-paper

Table 1 of arXiv:1910.02054 has parameters, gradients and Adam states, in GB of 1e9 bytes. A row of the run has bytes by
category at points of a step (docs/metrics.md). Three figures are reached from the paper's: what is held of the three
at the end of backward, what is live between steps, and the peak. Terms sum to the figure to the byte, or this fails.
"""

import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from bench.record import MemoryPoint, Record
from bench.store import read_records
from bench.zero.defaults import SIZES
from bench.zero.stages import STRATEGIES
from bench.zero.theory import model_state_bytes

GB = 10**9
PSI = {"7.5b": 75 * 10**8, "128b": 128 * GB, "1t": 1000 * GB}
RANKS = (1, 4, 16, 64, 256, 1024)
# As printed, a row per N: stages 1, 2 and 3.
PRINTED = {
    "7.5b": "120 120 120 / 52.5 41.3 30 / 35.6 21.6 7.5 / 31.4 16.6 1.88 / 30.4 15.4 0.47 / 30.1 15.1 0.12",
    "128b": "2048 2048 2048 / 896 704 512 / 608 368 128 / 536 284 32 / 518 263 8 / 513 257 2",
    "1t": "16000 16000 16000 / 7000 5500 4000 / 4750 2875 1000 / 4187 2218 250 / 4046 2054 62.5 / 4011 2013 15.6",
}
STATES = ("parameters", "gradients", "optimizer_states")
# The columns of the peak besides the states.
PEAK = {
    "step temporaries": ("step_temporaries",),
    "buckets": ("zero_buckets", "bucket_copies"),
    "gathered": ("gathered_parameters", "persisted_parameters"),
    "activations": ("activations", "backward_temporaries"),
    "logits": ("logits_loss",),
    "other": ("other",),
}
_BUCKET, _SUB_GROUP = SIZES["reduce_bucket_size"], SIZES["sub_group_size"]
# What is live between two steps and has no category: scalars.
_MOST_SCALAR_BYTES = 64


class Ledger(NamedTuple):
    """One cell in bytes; fractions of a byte where the paper's psi/N is no whole number.

    ``held``: paper + size + freed + whole + padding. ``steady``: held - released + buckets + kept + scalars.
    ``peak``: the states at the peak and the columns of ``PEAK``.
    """

    model: str
    stage: int
    ranks: int
    psi: int
    printed: str
    paper: Fraction  # the formula, at the paper's psi
    size: Fraction  # the same formula at the model's psi, less paper
    freed: Fraction  # stage 1: gradients that are other ranks' and gone when backward ends
    whole: Fraction  # stages 1 and 2: gradients are kept as whole tensors
    padding: Fraction  # and Adam's step counters
    held: int
    released: int  # gradients that do not outlive the step
    buckets: int
    kept: int  # small parameters that stage 3 keeps gathered
    scalars: int
    steady: int
    peak: int
    where: str
    states_at_peak: dict[str, int]
    at_peak: dict[str, int]
    laws: dict[str, Fraction]


def model_of(record: Record) -> str:
    """Return the paper's name of the record's model: ``gpt-7.5b.json`` is ``7.5b``."""
    return record.cell.model_name.removeprefix("gpt-").removesuffix(".json")


def printed(model: str, ranks: int, stage: int) -> str:
    """Return the figure as the paper prints it, in GB."""
    return PRINTED[model].split(" / ")[RANKS.index(ranks)].split()[stage - 1]


def ledger(record: Record) -> Ledger:
    """Split the row's figures into terms.

    Raises:
        AssertionError: the terms do not sum to the figure, or the printed figure is not what the formula gives.
    """
    model, ranks, psi = model_of(record), record.cell.world_size, record.num_params
    stage = STRATEGIES[record.cell.strategy].zero_stage
    assert record.memory is not None
    assert stage is not None
    assert psi is not None
    memory = record.memory.ranks[0]
    points = {point.point: point for point in memory.points}
    at = points["backward"].bytes
    paper, ours = (_formula(n, record.cell.strategy, ranks) for n in (PSI[model], psi))
    share = Fraction(2 * psi, ranks)  # of 16-bit gradients, and of parameters at stage 3
    excess = at["gradients"] - share
    size = ours - paper
    freed = share - 2 * psi if stage == 1 else Fraction(0)
    whole = excess if stage < 3 else Fraction(0)
    padding = at["parameters"] - (share if stage == 3 else 2 * psi) + at["optimizer_states"] - 6 * share
    padding += excess if stage == 3 else 0
    held = sum(at[name] for name in STATES)
    assert paper + size + freed + whole + padding == held
    unit = Fraction(1, 10 ** len(printed(model, ranks, stage).partition(".")[2]))
    assert abs(paper / GB - Fraction(printed(model, ranks, stage))) <= unit  # it rounds some and cuts others off

    released = at["gradients"] if stage < 3 else 0
    buckets, kept = at.get("zero_buckets", 0), at.get("persisted_parameters", 0)
    scalars = memory.steady_bytes - (held - released + buckets + kept)
    assert 0 <= scalars <= _MOST_SCALAR_BYTES

    peak = points["peak"]
    states_at_peak = {name: peak.bytes.get(name, 0) for name in STATES}
    at_peak = {column: sum(peak.bytes.get(name, 0) for name in names) for column, names in PEAK.items()}
    assert sum(states_at_peak.values()) + sum(at_peak.values()) == peak.total_bytes == memory.peak_allocated_bytes
    return Ledger(
        model=model, stage=stage, ranks=ranks, psi=psi, printed=printed(model, ranks, stage),
        paper=paper, size=size, freed=freed, whole=whole, padding=padding, held=held,
        released=released, buckets=buckets, kept=kept, scalars=scalars, steady=memory.steady_bytes,
        peak=peak.total_bytes, where=peak.where, states_at_peak=states_at_peak, at_peak=at_peak,
        laws=_laws(points, stage, psi, ranks),
    )  # fmt: skip


def _formula(psi: int, strategy: str, ranks: int) -> Fraction:
    """Return the paper's bytes, exactly: 4 psi + 12 psi/N, 2 psi + 14 psi/N, 16 psi/N."""
    return Fraction(model_state_bytes(1, strategy, ranks, "bf16")) * psi  # all N of the table are powers of two


def _laws(points: dict[str, MemoryPoint], stage: int, psi: int, ranks: int) -> dict[str, Fraction]:
    """Return what is held in units of psi, psi/N, or what else it should be a multiple of."""
    backward, step, peak = (points[name].bytes for name in ("backward", "step", "peak"))
    share = Fraction(psi, ranks)
    unit, of_unit = ("psi/N", share) if stage == 3 else ("psi", Fraction(psi))
    found = {
        f"parameters, {unit}": backward["parameters"] / of_unit,
        "optimizer states, psi/N": backward["optimizer_states"] / share,
    }
    temporaries = step["step_temporaries"]
    if stage == 3:
        found["gradients, psi/N"] = backward["gradients"] / share
        found["bucket, elements of reduce_bucket_size"] = Fraction(backward["zero_buckets"], _BUCKET)
        if share > _SUB_GROUP:
            found["temporaries of the step, elements of sub_group_size"] = Fraction(temporaries, _SUB_GROUP)
            return found
    elif peak.get("step_temporaries", 0) == 0:
        found["bucket at a peak in backward, elements of reduce_bucket_size"] = Fraction(peak["zero_buckets"], _BUCKET)
        if stage == 1:
            found["gradients at a peak in backward, psi"] = Fraction(peak["gradients"], psi)
            states = sum(peak[name] for name in STATES)
            found["all three at a peak in backward, the paper's formula"] = states / (4 * psi + 12 * share)
    if step.get("gradients", 0) and stage < 3:
        found["temporaries of the step before whole gradients are freed, psi/N"] = temporaries / share
    else:
        found["temporaries of the step, psi/N"] = temporaries / share
    return found


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gb(value: Fraction | int, sign: str = "") -> str:
    """Return GB to the megabyte; a term that is nothing at all is '0', one too small to see '+0.000'."""
    return format(float(value) / GB, f"{sign},.3f") if value else "0"


def summary_table(found: list[Ledger]) -> str:
    """Return the paper's own layout: what it prints, and beside it the three figures of each row that there is."""
    by_place = {(each.model, each.ranks, each.stage): each for each in found}
    header = ["psi", "N"] + [f"z{stage} {what}" for stage in (1, 2, 3) for what in ("paper", "held", "steady", "peak")]
    rows = []
    for model, ranks in dict.fromkeys(
        (each.model, each.ranks) for each in sorted(found, key=lambda e: (e.psi, e.ranks))
    ):
        row = [model.upper(), str(ranks)]
        for stage in (1, 2, 3):
            each = by_place.get((model, ranks, stage))
            row.append(printed(model, ranks, stage))
            row += [f"{size / GB:,.2f}" for size in (each.held, each.steady, each.peak)] if each else ["-"] * 3
        rows.append(row)
    return _table(header, rows)


def states_table(found: list[Ledger]) -> str:
    """Return the way from the paper's figure to what is held at the end of backward, and on to what is steady."""
    header = ["stage", "N", "printed", "formula", "size", "freed", "whole tensors", "padding", "= held"]
    header += ["released", "bucket", "kept gathered", "= steady"]
    rows = [
        [str(each.stage), str(each.ranks), each.printed, _gb(each.paper)]
        + [_gb(term, "+") for term in (each.size, each.freed, each.whole, each.padding)]
        + [_gb(each.held), *(_gb(term, "+") for term in (-each.released, each.buckets, each.kept)), _gb(each.steady)]
        for each in found
    ]
    return _table(header, rows)


def peak_table(found: list[Ledger]) -> str:
    """Return what the peak is made of."""
    names = [column for column in PEAK if column != "other"]
    header = ["stage", "N", "printed", "peak", "parameters", "gradients", "optimizer states", *names, "where"]
    rows = [
        [str(each.stage), str(each.ranks), each.printed, _gb(each.peak)]
        + [_gb(each.states_at_peak[name]) for name in STATES]
        + [_gb(each.at_peak[name]) for name in names]
        + [each.where]
        for each in found
    ]
    return _table(header, rows)


def laws_table(found: list[Ledger]) -> str:
    """Return bytes per unit, the least and the most over all models and N."""
    rows = []
    for stage in (1, 2, 3):
        here = [each.laws for each in found if each.stage == stage]
        for law in dict.fromkeys(name for laws in here for name in laws):
            values = [laws[law] for laws in here if law in laws]
            rows.append([str(stage), law, str(len(values)), f"{float(min(values)):.4f}", f"{float(max(values)):.4f}"])
    return _table(["stage", "bytes of, per", "cells", "least", "most"], rows)


def main(run: Path) -> None:
    """Print the tables of ``run``."""
    records = [record for record in read_records(run) if record.status == "completed"]
    found = sorted(map(ledger, records), key=lambda each: (each.psi, each.stage, each.ranks))
    print(f"GB of 1e9 bytes\n\n{summary_table(found)}\n")
    for model in PSI:
        here = [each for each in found if each.model == model]
        if here:
            print(
                f"{model}, {here[0].psi:,} parameters: held after backward, and between steps\n\n{states_table(here)}\n"
            )
            print(f"{model}, {here[0].psi:,} parameters: the peak\n\n{peak_table(here)}\n")
    print(f"Bytes per unit over {len(found)} cells, whose terms sum to the figures exactly\n\n{laws_table(found)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
