"""Why steps take the time they take."""

from bench.analysis.rules.rule import Group, Rule, collectives, name, volume
from bench.analysis.units import mib
from bench.record import Record
from bench.validity.cores import says_oversubscribed

SLOWER = 1.2  # times: below, a difference between two launches is not called a slow link


def _reliable_step_s(record: Record) -> float | None:
    """Return the median step time, ``None`` where it is not to be compared."""
    timing = record.timing
    return timing.step_time_s if timing and not timing.suspect_reasons else None


def _skipped(group: Group) -> dict[str, str]:
    return {
        name(row): f"{row.skipped_steps} of {row.cell.total_steps} steps skipped"
        for row in group.rows
        if row.skipped_steps
    }


def _trace(group: Group) -> dict[str, str]:
    return {
        name(row): f"{row.trace_invalidations} times in {row.cell.total_steps} steps"
        for row in group.rows
        if row.trace_invalidations
    }


def _oversubscribed(group: Group) -> dict[str, str]:
    return {
        name(row): f"{'; '.join(row.timing.suspect_reasons)}: {row.timing.step_time_s:.3f} s per step, "
        f"{row.timing.step_thread_cpu_s:.3f} s of it computing"
        for row in group.rows
        if row.timing and any(map(says_oversubscribed, row.timing.suspect_reasons))
    }


def _on_one_node(group: Group, row: Record) -> Record | None:
    """Return the same cell on one node, else one node's share of it on one node."""
    for ranks in (row.cell.world_size, row.cell.world_size // row.cell.num_nodes):
        wanted = row.cell.model_copy(update={"num_nodes": 1, "world_size": ranks})
        alike = (other for other in group.run if other.cell == wanted and other.device == row.device)
        found = next((other for other in alike if other.requested_stack == row.requested_stack), None)
        if found is not None:
            return found
    return None


def _slow_link(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        crossing = volume(item for item in collectives(row) if item.group == "inter-node")
        single = _on_one_node(group, row) if crossing else None
        if single is None:
            continue
        here, there = _reliable_step_s(row), _reliable_step_s(single)
        if here is not None and there is not None and here > SLOWER * there:
            found[name(row)] = (
                f"{here:.3f} s per step on {row.cell.num_nodes} nodes, {there:.3f} s with {single.cell.world_size} "
                f"ranks on one; {mib(crossing)} of {mib(volume(collectives(row)))} per step cross nodes"
            )
    return found


def _two_baselines(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        other = group.beside(row, "ddp")
        if row.cell.strategy != "z0" or other is None or row.memory is None or other.memory is None:
            continue
        parts = [f"peak {mib(row.memory.peak_allocated_bytes)} and {mib(other.memory.peak_allocated_bytes)}"]
        differ = row.memory.peak_allocated_bytes != other.memory.peak_allocated_bytes
        here, there = _reliable_step_s(row), _reliable_step_s(other)
        if here is not None and there is not None and row.timing and other.timing:
            parts.append(f"{here:.3f} and {there:.3f} s per step")
            differ |= abs(here - there) > row.timing.step_time_iqr_s + other.timing.step_time_iqr_s
        if differ:
            found[f"{name(row)} and {name(other)}"] = ", ".join(parts)
    return found


RULES = (
    Rule(
        "skipped-steps",
        "Throughput",
        "the engine counted skipped optimizer steps",
        "A skipped step (fp16 overflow) updates and gathers nothing, so these rows look faster than training is.",
        ("deepspeedai/DeepSpeed#2879", "deepspeedai/DeepSpeed#931"),
        _skipped,
    ),
    Rule(
        "trace-invalidated",
        "Throughput",
        "stage 3 dropped its recorded module order at least once",
        "Modules ran in another order than stage 3 had recorded, so it dropped the order and gathered without "
        "prefetching; a mixture of experts does so by design.",
        ("deepspeedai/DeepSpeed#4808",),
        _trace,
    ),
    Rule(
        "oversubscribed",
        "Throughput",
        "more compute threads than cores",
        "Ranks share cores and wait for each other: the times are the scheduler's of this machine, not the stages'.",
        ("pytorch/pytorch#22260",),
        _oversubscribed,
    ),
    Rule(
        "slow-link",
        "Throughput",
        "collectives cross nodes, the same cell (else one node's share of it) is there on one node, and the step takes "
        f"more than {SLOWER} times as long, both times being reliable",
        "The link between the nodes sets the pace.",
        ("deepspeedai/DeepSpeed#5770",),
        _slow_link,
    ),
    Rule(
        "z0-is-not-ddp",
        "Throughput",
        "z0 and ddp are both there with as many ranks, and differ in peak memory, or in reliable step times by more "
        "than the sum of their quartile distances",
        "DeepSpeed's stage 0 and torch DDP are two baselines, not one: stage 0 has its own optimizer wrapper and "
        "reduces after backward, DDP in it.",
        ("deepspeedai/DeepSpeed#1436",),
        _two_baselines,
    ),
)
