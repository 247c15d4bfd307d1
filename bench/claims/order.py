# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Claims on the order of the stages, in memory and in traffic: each group of rows that differ in the stage alone."""

from collections.abc import Callable, Sequence

from bench.analysis.units import mib
from bench.claims.claim import Claim, Found, text
from bench.claims.held import held
from bench.claims.rows import Near, beside, beside_strategy, counted_rows, evidence, name, near, stage
from bench.claims.verdict import Text
from bench.record import Record

# Less or more by no more than this part is the same: flags, padding and the smallest parameters are no saving.
SAME = 0.01


def peak(record: Record) -> float | None:
    """Peak bytes of a settled step, on the rank that has most."""
    return None if record.memory is None else float(record.memory.peak_allocated_bytes)


def sent(record: Record) -> float | None:
    """Bytes that a rank sends per optimizer step, under the backend's wire model."""
    return None if record.comm is None else record.comm.comm_wire_bytes_per_step


def less(here: float, there: float) -> bool:
    """Whether ``here`` is less than ``there`` by more than what counts as the same."""
    return here < there * (1 - SAME)


def at_stages(
    record: Record, rows: Near, wanted: Sequence[str], measure: Callable[[Record], float | None]
) -> tuple[list[Record], list[float]] | None:
    """Return the rows of the stages ``wanted`` beside ``record``, and their figures; ``None`` where one is missing."""
    found = [record if stage(record) == wanted_stage else beside(record, rows, wanted_stage) for wanted_stage in wanted]
    figures = [None if row is None else measure(row) for row in found]
    if any(figure is None for figure in figures):
        return None
    return [row for row in found if row is not None], [figure for figure in figures if figure is not None]


def _listed(rows: Sequence[Record], figures: Sequence[float]) -> str:
    return ", ".join(f"{row.cell.strategy_name} {mib(each)}" for row, each in zip(rows, figures, strict=True))


def _memory_order(records: Sequence[Record]) -> Found:
    rows = counted_rows(records)
    found, others = [], near(rows)
    for record in rows:
        of = at_stages(record, others, ("z0", "z2", "z3"), peak) if stage(record) == "z3" else None
        if of is None:
            continue
        z0, z2, z3 = of[1]
        shown = _listed(*of)
        says = text(f"peak per GPU: {shown}", f"每 GPU 峰值：{shown}")
        found.append(evidence(record, less(z3, z2) and less(z2, z0), says, of[0][:2]))
    return Found(found, _plain_data_parallel(rows))


def _plain_data_parallel(rows: Sequence[Record]) -> list[Text]:
    """Whether stage 0 saves anything against torch DDP, which the claim also has."""
    ratios, whole = [], 0
    ddp: dict[str, Record] = {}  # by settings without a release of DeepSpeed, which torch DDP does not know
    for record in rows:
        if record.cell.strategy == "ddp":
            ddp.setdefault(beside_strategy(record) + record.device, record)
    for record in rows:
        other = ddp.get(beside_strategy(record) + record.device) if stage(record) == "z0" else None
        here, there = peak(record), peak(other) if other else None
        if here and there:
            ratios.append(here / there)
            whole += held(record, "parameters") == held(record, "optimizer states") == "whole"
    if not ratios:
        return []
    saves, least, most = sum(less(ratio, 1.0) for ratio in ratios), min(ratios), max(ratios)
    return [
        text(
            f"Stage 0 against torch DDP: {saves} of {len(ratios)} rows hold less, {least:.2f} to {most:.2f} times its "
            f"peak, with all parameters and optimizer states whole in {whole} of them.",
            f"阶段 0 与 torch DDP 相比：{len(ratios)} 行中有 {saves} 行占用更少；"
            f"峰值为其 {least:.2f} 至 {most:.2f} 倍；其中 {whole} 行的参数与优化器状态均为完整。",
        )
    ]


def _traffic_order(records: Sequence[Record]) -> Found:
    rows = counted_rows(records)
    found, groups, others = [], [], near(rows)
    for record in rows:
        of = at_stages(record, others, ("z0", "z2", "z3"), sent) if stage(record) == "z3" else None
        if of is None:
            continue
        z0, z2, z3 = of[1]
        shown = _listed(*of)
        says = text(f"sent per GPU and step: {shown}", f"每 GPU 每步发送：{shown}")
        found.append(evidence(record, less(z0, z2) and less(z2, z3), says, of[0][:2]))
        groups.append((record, of[1]))
    return Found(found, _cheaper_than_2(groups))


def _cheaper_than_2(groups: Sequence[tuple[Record, list[float]]]) -> list[Text]:
    """Where stage 3 sends less than stage 2, or as much."""
    below = [(row, z3 / z2) for row, (_, z2, z3) in groups if less(z3, z2)]
    if not below:
        return []
    row, least = min(below, key=lambda each: each[1])
    return [
        text(
            f"Stage 3 sends less than stage 2 in {len(below)} of {len(groups)} comparisons, down to {least:.2f} times "
            f"({name(row)}).",
            f"{len(groups)} 组比较中有 {len(below)} 组里阶段 3 的发送量少于阶段 2，"
            f"最低为 {least:.2f} 倍（{name(row)}）。",
        )
    ]


CLAIMS = (
    Claim(
        "memory-order",
        "memory",
        text(
            "Each step from stage 0 to 2 to 3 lowers the peak memory of a GPU (by more than 1 %).",
            "从阶段 0 到 2 再到 3，每升一级，每 GPU 的峰值内存都降低（超过 1%）。",
        ),
        text(
            "completed rows of z0, z2 and z3 that differ in nothing else, on 2 or more GPUs, measured or emulated",
            "2 个及以上 GPU、除阶段外设置相同的 z0、z2、z3 行（实测或模拟），且已完成",
        ),
        _memory_order,
        ("memory",),
    ),
    Claim(
        "traffic-order",
        "traffic",
        text(
            "Each step from stage 0 to 2 to 3 raises the bytes that a GPU sends per optimizer step (by more than 1 %).",
            "从阶段 0 到 2 再到 3，每升一级，每 GPU 每个优化器步发送的字节都增加（超过 1%）。",
        ),
        text(
            "completed rows of z0, z2 and z3 that differ in nothing else, on 2 or more GPUs, measured or emulated",
            "2 个及以上 GPU、除阶段外设置相同的 z0、z2、z3 行（实测或模拟），且已完成",
        ),
        _traffic_order,
    ),
)
