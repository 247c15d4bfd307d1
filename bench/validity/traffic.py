"""Whether a row moved the bytes that the code of its DeepSpeed version moves."""

from collections import Counter

from bench.record import Comm, Finding, Practice
from bench.zero.practice import CONTROL_ELEMENTS


def measured_volumes(comm: Comm) -> dict[tuple[str, str, str], int]:
    """Return the bytes of one step by phase, operation and dtype; control collectives are left out."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in comm.collectives:
        if row.num_elements > CONTROL_ELEMENTS:
            sums[row.phase, row.op, row.dtype] += row.num_bytes * row.count
    return dict(sums)


def practice_volumes(practice: Practice) -> dict[tuple[str, str, str], int]:
    """Return the same of a prediction."""
    return {(row.phase, row.op, row.dtype): row.num_bytes for row in practice.volumes}


def differences(comm: Comm, practice: Practice | None) -> list[Finding]:
    """Return one finding that names every volume that was predicted otherwise; none without a prediction."""
    if practice is None:
        return []
    measured, expected = measured_volumes(comm), practice_volumes(practice)
    words = [
        f"{' '.join(key)} moved {measured.get(key, 0):,} bytes, DeepSpeed's code moves {expected.get(key, 0):,}"
        for key in sorted(measured.keys() | expected.keys())
        if measured.get(key, 0) != expected.get(key, 0)
    ]
    return [Finding(check="traffic", verdict="suspect", text="; ".join(words))] if words else []
