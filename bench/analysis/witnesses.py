"""The rows of one training, held against each other: which of them stands alone, the reference included.

Each row is compared with the reference when it is measured. Here the rows are witnesses for or against it: when torch
DDP and stage 0 agree with each other and not with the reference, it is the reference that is wrong; and where no
reference could be run, they take its place.
"""

import json
from collections.abc import Iterable

from bench.record import Record
from bench.validity.parity import worst

_WITNESSES = ("ddp", "z0")


def _training(record: Record) -> str:
    """Return a key that is the same for rows that must have the same losses."""
    cell = record.cell
    same = cell.model_dump(
        mode="json",
        include={"model", "train_micro_batch_size_per_gpu", "seq_length", "dtype", "data", "optimizer", "seed"},
    )
    return json.dumps([same, record.train_batch_size], sort_keys=True)


def _first_step(record: Record) -> tuple[list[float | None], list[float | None]]:
    """Return loss and gradient norm of the first step, which no difference of the optimizers has touched yet."""
    assert record.parity is not None
    return record.parity.losses[:1], record.parity.grad_norms[:1]


def _agree(a: Record, b: Record) -> bool:
    assert a.parity is not None
    tolerances = (a.parity.loss_tolerance, a.parity.grad_norm_tolerance)
    differences = (worst(x, y) for x, y in zip(_first_step(a), _first_step(b), strict=True))
    return all(d is not None and d <= t for d, t in zip(differences, tolerances, strict=True))


def _disagrees(record: Record) -> bool:
    return any(finding.check == "parity" and finding.verdict == "invalid" for finding in record.findings)


def _unchecked(record: Record) -> str | None:
    """Return why a row was not compared with a reference run; ``None`` when it was."""
    if record.parity is None or record.parity.reference is not None:
        return None
    said = (finding.text for finding in record.findings if finding.check == "parity")
    return next(said, "not compared with a reference run")


def _sentences(rows: list[Record]) -> list[str]:
    witnesses = [row for row in rows if row.cell.strategy in _WITNESSES]
    if len({row.cell.strategy for row in witnesses}) < 2 or not all(_agree(witnesses[0], row) for row in witnesses[1:]):
        return []
    names = " and ".join(dict.fromkeys(row.cell.strategy for row in witnesses))
    if all(_disagrees(row) for row in witnesses):
        return [
            f"{names} agree with each other and not with the reference run: suspect the reference "
            f"({witnesses[0].label}), not these rows."
        ]
    unchecked = [row for row in rows if row.cell.strategy not in _WITNESSES and _unchecked(row)]
    odd = [row for row in unchecked if not _agree(witnesses[0], row)]
    agreeing = [row for row in unchecked if _agree(witnesses[0], row)]
    found = []
    if odd:
        found.append(
            f"{names} agree with each other in the first step, and these rows, which no reference run checked, do "
            f"not: {', '.join(dict.fromkeys(row.label for row in odd))} ({_reasons(odd)})."
        )
    if agreeing:
        found.append(
            f"In the first step {names} and {len(agreeing)} further row{'s' if len(agreeing) > 1 else ''} agree, which "
            f"no reference run checked ({_reasons(agreeing)})."
        )
    return found


def _reasons(rows: list[Record]) -> str:
    return "; ".join(dict.fromkeys(filter(None, map(_unchecked, rows))))


def witnesses(records: Iterable[Record]) -> list[str]:
    """Return what the rows say about each other beyond what each says of itself."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.parity is not None:
            groups.setdefault(_training(record), []).append(record)
    return [sentence for rows in groups.values() for sentence in _sentences(rows)]
