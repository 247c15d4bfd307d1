"""Where every byte of a step went: the paper, DeepSpeed's code and the count side by side."""

import os
from typing import Any

from bench import wire
from bench.analysis.memory import in_doubt
from bench.analysis.tables import Table
from bench.errors import ScenarioError
from bench.models.catalog import load_config, names
from bench.record import Collective, Comm, Record
from bench.validity.traffic import measured_volumes, practice_volumes
from bench.zero.explain import sentences
from bench.zero.practice import CONTROL_ELEMENTS
from bench.zero.theory import TORCH_DTYPE, volumes

_PHASES = ["forward", "backward", "step"]
_Key = tuple[str, str, str]

NOTES = (
    "bytes: larger side of the collectives of one optimizer step on rank 0 or the emulated rank, padding included; "
    "sent: bytes that the rank puts on the wire, the paper's by a ring, practice and counted under the backend's wire "
    "model (docs/metrics.md).",
    "paper: ZeRO, arXiv 1910.02054, section 7, one micro-step. practice: DeepSpeed 0.19.8 as its code reads "
    "(bench/zero/practice.py). counted: at the dispatcher, of a run or, where the name says so, of an emulated rank.",
    f"Control collectives (at most {CONTROL_ELEMENTS} elements: norms, flags) are counted apart.",
)


def traffic_tables(records: list[Record]) -> list[Table]:
    """Return one table for each completed row: operation x phase x group x dtype."""
    return [_table(record, record.comm) for record in records if record.comm]


def explanations(record: Record) -> list[str]:
    """Return why the row's columns differ; what cannot be said (an unknown release or setting) is said too."""
    if record.comm is None:
        return [f"{record.status}: {record.reason}"]
    if record.practice is None:
        return [
            f"No prediction for this cell under deepspeed {record.stack.get('deepspeed', 'of unknown version')}: "
            "bench/zero/practice.py says what it covers."
        ]
    found = [finding.text for finding in record.findings if finding.check == "traffic" and finding.verdict != "note"]
    config = _config_at_hand(record.cell.model)
    return found + sentences(
        record.cell,
        record.practice,
        record.num_params or 0,
        record.comm.backend,
        config,
        trained=record.num_trainable_params,
    )


def summary(records: list[Record]) -> Table:
    """Return one line per row: bytes by paper, practice and count, and whether the last two agree."""
    header = ["cell", "bytes: paper", "practice", "counted", "=", "sent: paper", "practice", "counted", "control"]
    rows = []
    for record in records:
        if record.comm is None:
            rows.append([record.label, *[record.status] * 3, "", "", "", "", ""])
            continue
        paper = volumes(record.num_params or 0, record.cell.strategy, record.cell.dtype, record.num_trainable_params)
        measured = measured_volumes(record.comm)
        expected = practice_volumes(record.practice) if record.practice else None
        rows.append(
            [
                record.label + in_doubt(record),
                f"{sum(paper.values()):,}",
                f"{record.practice.comm_bytes_per_step:,}" if record.practice else "?",
                f"{sum(measured.values()):,}",
                "?" if expected is None else "yes" if expected == measured else "NO",
                _whole(record.theory.comm_wire_bytes_per_step if record.theory else None),
                _whole(record.practice.comm_wire_bytes_per_step if record.practice else None),
                _whole(record.comm.comm_wire_bytes_per_step),
                str(record.comm.control_op_count),
            ]
        )
    return Table("Traffic of one optimizer step", "All cells", header, rows)


def verdict_line(records: list[Record]) -> str:
    """Return how many rows moved exactly what was predicted, by phase, operation and dtype."""
    compared = [record for record in records if record.comm and record.practice]
    equal = sum(measured_volumes(r.comm) == practice_volumes(r.practice) for r in compared if r.comm and r.practice)
    return f"counted = practice, by phase, operation and dtype, to the byte: {equal} of {len(compared)} rows."


def _table(record: Record, comm: Comm) -> Table:
    cell = record.cell
    dtype = TORCH_DTYPE[cell.dtype]
    sizes = volumes(record.num_params or 0, cell.strategy, cell.dtype, record.num_trainable_params)
    paper = {(*key, dtype): size for key, size in sizes.items()}
    expected = practice_volumes(record.practice) if record.practice else None
    measured = measured_volumes(comm)
    rows = [
        _row(key, paper.get(key, 0), expected, [row for row in _data(comm) if _key(row) == key], comm, cell.world_size)
        for key in sorted({*paper, *(expected or {}), *measured}, key=lambda key: (_place(key[0]), key))
    ]
    control = f"{comm.control_op_count} control collectives"
    title = f"{record.label}{in_doubt(record)} (GAS {cell.gradient_accumulation_steps}, {comm.backend}, {control})"
    header = ["phase", "op", "group", "dtype", "calls", "bytes: paper", "practice", "counted"]
    return Table("Traffic by operation", title, [*header, "sent: paper", "practice", "counted"], rows)


def _row(
    key: _Key, paper: int, expected: dict[_Key, int] | None, found: list[Collective], comm: Comm, world_size: int
) -> list[str]:
    phase, op, dtype = key
    groups = "/".join(dict.fromkeys(row.group for row in found)) or "-"
    measured = sum(row.num_bytes * row.count for row in found)
    sent = sum((row.wire_bytes or 0.0) * row.count for row in found)
    predicted = None if expected is None else expected.get(key, 0)
    return [
        phase,
        op,
        groups,
        dtype,
        str(sum(row.count for row in found)),
        f"{paper:,}",
        _whole(predicted),
        f"{measured:,}",
        _whole(wire.wire_bytes(op, paper, world_size, "nccl")),
        _whole(None if predicted is None else wire.wire_bytes(op, predicted, world_size, comm.backend)),
        _whole(sent),
    ]


def _data(comm: Comm) -> list[Collective]:
    return [row for row in comm.collectives if row.num_elements > CONTROL_ELEMENTS]


def _key(row: Collective) -> _Key:
    return row.phase, row.op, row.dtype


def _place(phase: str) -> int:
    return _PHASES.index(phase) if phase in _PHASES else len(_PHASES)


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _config_at_hand(model: str) -> dict[str, Any] | None:
    """Return the model's configuration if it is on this machine; a report downloads nothing."""
    if model not in names() and not os.path.lexists(model):
        return None
    try:
        return load_config(model)
    except ScenarioError:
        return None
