# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Whether a rank at stage 3 ever holds the whole model at once."""

from collections.abc import Sequence

from bench.analysis.rules.rule import collectives, volume
from bench.claims.claim import Claim, Found, text
from bench.claims.rows import counted_rows, evidence, stage
from bench.record import Record
from bench.zero.theory import BYTES_PER_ELEMENT

_GATHERED = ("gathered_parameters", "persisted_parameters")


def largest_share(record: Record) -> tuple[float, str] | None:
    """Return the largest part of the parameters that a rank held gathered at once, and at which moment of a step.

    Of the moments that the record keeps: the ends of forward and backward, the peak, the optimizer step. ``None``
    where it keeps none, or the size of the model is not known.
    """
    if record.memory is None or not record.num_params:
        return None
    whole = record.num_params * BYTES_PER_ELEMENT[record.cell.dtype]
    found = [
        (sum(point.bytes.get(category, 0) for category in _GATHERED) / whole, point.point)
        for rank in record.memory.ranks
        for point in rank.points
        if point.point != "init"
    ]
    return max(found, default=None)


def gathered_in_backward(record: Record) -> float:
    """Return the parameters that each backward gathers, 1 being the whole model."""
    whole = (record.num_params or 0) * BYTES_PER_ELEMENT[record.cell.dtype] * record.cell.gradient_accumulation_steps
    gathers = [c for c in collectives(record) if c.op.startswith("all_gather") and c.phase == "backward"]
    return volume(gathers) / whole if whole else 0.0


_MOMENTS = {
    "forward": text("at the end of forward", "前向结束时"),
    "backward": text("at the end of backward", "反向结束时"),
    "step": text("in the optimizer step", "优化器更新中"),
    "peak": text("at the peak of memory", "显存峰值时"),
}


def _look(records: Sequence[Record]) -> Found:
    found = []
    for record in counted_rows(records):
        most = largest_share(record) if stage(record) == "z3" else None
        if most is None:
            continue
        part, point = most
        when, again = _MOMENTS[point], gathered_in_backward(record)
        says = text(
            f"at most {part:.0%} of {record.num_params:,} parameters gathered on a rank, {when['en']}; "
            f"each backward gathers {again:.0%}",
            f"一个 rank 上聚合的参数最多为 {record.num_params:,} 个中的 {part:.0%}（{when['zh']}）；"
            f"每次反向聚合 {again:.0%}",
        )
        found.append(evidence(record, part < 0.99, says))
    return Found(found)


CLAIMS = (
    Claim(
        "stage3-never-whole",
        "states",
        text(
            "At stage 3 no rank has all parameters at once: not at the ends of forward and backward, nor at the peak.",
            "阶段 3 下，没有 rank 同时拥有全部参数：前向与反向结束时没有，内存峰值时也没有。",
        ),
        text(
            "completed rows of z3 on 2 or more ranks whose memory is taken apart",
            "2 个及以上 rank、内存构成已拆解的 z3 行，且已完成",
        ),
        _look,
    ),
)
