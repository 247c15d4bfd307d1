# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Whether stage 2 leaves nothing for stage 1 to do better."""

from collections.abc import Sequence

from bench.analysis.units import mib
from bench.claims.claim import Claim, Found, text
from bench.claims.order import less, peak, sent
from bench.claims.rows import beside, counted_rows, evidence, near, stage
from bench.claims.verdict import Text
from bench.record import Record


def pairs(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return rows of stage 2, each with the row of stage 1 that differs in nothing else."""
    twos, found = [row for row in rows if stage(row) == "z2"], near(rows)
    return [(two, one) for two in twos if (one := beside(two, found, "z1")) is not None]


def _look(records: Sequence[Record]) -> Found:
    found, figures = [], []
    for two, one in pairs(counted_rows(records)):
        memory, traffic = (peak(one), peak(two)), (sent(one), sent(two))
        if memory[0] is None or memory[1] is None or traffic[0] is None or traffic[1] is None:
            continue
        says = text(
            f"peak {mib(memory[1])} at stage 2 and {mib(memory[0])} at stage 1, sent {mib(traffic[1])} and "
            f"{mib(traffic[0])} per step",
            f"峰值：阶段 2 为 {mib(memory[1])}，阶段 1 为 {mib(memory[0])}；每步发送：{mib(traffic[1])} 与 "
            f"{mib(traffic[0])}",
        )
        covers = not less(memory[0], memory[1]) and not less(traffic[0], traffic[1])
        found.append(evidence(two, covers, says, [one]))
        figures.append((two, one))
    return Found(found, _steady(figures) + _traded(figures))


def _steady(figures: Sequence[tuple[Record, Record]]) -> list[Text]:
    """Bytes held between two steps, and at the peak."""
    if not figures:
        return []
    same = sum(_held(two) == _held(one) for two, one in figures)
    lower = [(peak(two) or 0) / (peak(one) or 1) for two, one in figures if less(peak(two) or 0, peak(one) or 0)]
    depth = (f", down to {min(lower):.2f} times", f"，最低为 {min(lower):.2f} 倍") if lower else ("", "")
    return [
        text(
            f"Between two steps both hold the same bytes in {same} of {len(figures)} pairs; at the peak stage 2 holds "
            f"less in {len(lower)}{depth[0]}.",
            f"两步之间，{len(figures)} 对中有 {same} 对二者占用的字节相同；峰值时阶段 2 更少的有 {len(lower)} 对"
            f"{depth[1]}。",
        )
    ]


def _held(record: Record) -> int | None:
    return None if record.memory is None else record.memory.largest.steady_bytes


def _traded(figures: Sequence[tuple[Record, Record]]) -> list[Text]:
    """What stage 2 sends more, at most."""
    ratios = [
        ((sent(two) or 0) / once, two.cell.gradient_accumulation_steps) for two, one in figures if (once := sent(one))
    ]
    if not ratios:
        return []
    most, steps = max(ratios)
    return [
        text(
            f"Stage 2 sends at most {most:.2f} times as much as stage 1, with {steps} micro-steps per optimizer step.",
            f"阶段 2 的发送量最多为阶段 1 的 {most:.2f} 倍（每个优化器步 {steps} 个微步）。",
        )
    ]


CLAIMS = (
    Claim(
        "stage2-covers-stage1",
        "traffic",
        text(
            "Stage 2 makes stage 1 pointless: it needs no more memory and sends no more bytes than stage 1.",
            "阶段 2 使阶段 1 失去意义：其占用的内存与发送的字节都不多于阶段 1。",
        ),
        text(
            "completed rows of z1 and z2 that differ in nothing else, on 2 or more GPUs, measured or emulated",
            "2 个及以上 GPU、除阶段外设置相同的 z1、z2 行（实测或模拟），且已完成",
        ),
        _look,
        ("throughput", "memory"),
        ("ZeRO-1", "ZeRO-2"),
    ),
)
