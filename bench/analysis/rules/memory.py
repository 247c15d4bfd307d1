"""Why a stage does not save what it should."""

from bench.analysis.rules.rule import Group, Rule, name
from bench.analysis.units import mib
from bench.record import MemoryPoint, Record
from bench.zero.memory import CATEGORIES
from bench.zero.stages import STRATEGIES

STATES = ("parameters", "persisted_parameters", "gradients", "optimizer_states")
FIXED = ("zero_buckets", "bucket_copies", "gathered_parameters")
assert {*STATES, *FIXED} <= {*CATEGORIES}


def _points(record: Record) -> list[MemoryPoint]:
    return record.memory.largest.points if record.memory else []


def _states(record: Record) -> int:
    """Bytes of model states, each category where it is largest: not all are there at one moment."""
    return sum(max((point.bytes.get(category, 0) for point in _points(record)), default=0) for category in STATES)


def _fixed(record: Record) -> int | None:
    """Bytes at the peak that a stage adds to work at all; ``None`` when the peak was not taken apart."""
    peak = next((point for point in _points(record) if point.point == "peak"), None)
    return None if peak is None else sum(peak.bytes.get(category, 0) for category in FIXED)


def _buffers(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        base = group.beside(row, "z0", "ddp")
        if row.cell.world_size == 1 or base is None or not STRATEGIES[row.cell.strategy].shards:
            continue
        here, there = _fixed(row), _fixed(base)
        if here is None or there is None:
            continue
        saved = _states(base) - _states(row)
        if here - there > saved:
            found[name(row)] = (
                f"{mib(max(saved, 0))} of states saved against {base.cell.strategy}, "
                f"{mib(here - there)} more in buffers"
            )
    return found


def _degree_1(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        degree = row.effective.get("dp_world_size", row.effective.get("world_size"))
        if degree == 1 and STRATEGIES[row.cell.strategy].shards and row.memory:
            held = f"; {row.shards[0].optimizer_states:,} optimizer-state elements on it" if row.shards else ""
            found[name(row)] = f"1 rank, peak {mib(row.memory.peak_allocated_bytes)}{held}"
    return found


def _bf16_optimizer(group: Group) -> dict[str, str]:
    return {
        name(row): f"peak {mib(row.memory.peak_allocated_bytes)}"
        for row in group.rows
        if row.effective.get("optimizer_wrapper") == "BF16_Optimizer" and row.memory
    }


RULES = (
    Rule(
        "buffers-outweigh-savings",
        "Peak memory",
        "N > 1, and at the peak ZeRO's buffers and gathered parameters exceed those of z0 (else ddp) by more than the "
        "parameters, gradients and optimizer states that sharding saves",
        "This stage will not help here, because its fixed buffers outweigh what it saves in so small a model; smaller "
        "buckets (reduce_bucket_size, stage3_*) or a larger model change that.",
        ("deepspeedai/DeepSpeed#1302", "deepspeedai/DeepSpeed#6936"),
        _buffers,
    ),
    Rule(
        "dp-degree-1",
        "Peak memory",
        "the engine's data-parallel degree is 1 under a sharding stage",
        "At a data-parallel degree of 1 there is nobody to share with: ZeRO shards nothing and only adds its buffers.",
        ("deepspeedai/Megatron-DeepSpeed#239",),
        _degree_1,
    ),
    Rule(
        "bf16-optimizer",
        "Peak memory",
        "the engine's optimizer wrapper is BF16_Optimizer",
        "This row used BF16_Optimizer: sharded optimizer states, also at stage 0, and a whole fp32 gradient buffer, "
        "4 bytes per parameter.",
        ("deepspeedai/DeepSpeed#7515", "deepspeedai/DeepSpeed#2566", "bigscience-workshop/bigscience#71"),
        _bf16_optimizer,
    ),
)
