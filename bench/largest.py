"""The largest micro batch that fits: which sizes to look at, and what a run says of its size.

DeepSpeed's own autotuner ended such a search without having tried its upper end (deepspeedai/DeepSpeed#2160, #2162), so
what holds of this one is written down and tested: whatever ``fits`` answers, no size is asked twice, the result is
a size that was asked and fits (or 0), and the size that ends it was asked and does not.
"""

from collections.abc import Callable

from bench.cell import Cell
from bench.models.counts import ParamCount
from bench.plan import PlannedCell
from bench.record import BatchTry, Record
from bench.zero.offload import expected

# What a launch can end in that says whether its size fits; anything else says nothing of it.
DECIDES = ("completed", "oom", "host_oom")


def largest(fits: Callable[[int], bool], at_most: int, start: int = 1) -> tuple[int, int | None]:
    """Return the largest size from 1 to ``at_most`` that fits, and the size above it that does not.

    The first is 0 where not even 1 fits, the second ``None`` where ``at_most`` fits. From ``start`` on, steps double
    until a border lies between two sizes, which is then bisected: at most 2 log2(d) + 3 sizes are asked, d being the
    distance from ``start`` to the result. If ``fits`` is not monotone, the result fits and the size above it does not.
    """
    low, high = 0, at_most + 1  # what fits, or is below all sizes; what does not, or is above all
    size, step = min(max(start, 1), at_most), 1
    went_up = went_down = False
    while high - low > 1:
        if fits(size):
            low, went_up = size, True
        else:
            high, went_down = size, True
        if went_up and went_down:
            size = (low + high) // 2
        elif went_up:
            size = min(low + step, at_most)
        else:
            size = max(high - step, 1)
        step *= 2
    return low, None if high > at_most else high


def size_text(num_bytes: float) -> str:
    """Return bytes as a person reads them: ``80 GiB``, ``6.3 MiB``."""
    return f"{num_bytes / 2**30:g} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.4g} MiB"


def with_size(planned: PlannedCell, size: int, **changes: object) -> PlannedCell:
    """Return the cell with a micro batch of ``size``; it keeps its id."""
    cell = planned.cell.model_copy(update={"train_micro_batch_size_per_gpu": size, **changes})
    return planned.model_copy(update={"cell": cell})


def _peak(record: Record, budget: int | None) -> tuple[int, str | None]:
    """Return what is held against the budget, and where memory was highest.

    CUDA: what the caching allocator held. CPU: the live storages, of the step or while the engine was built. Emulated:
    the same if a budget was given, else what the modelled allocator held. Of a measured row that offloads: what would
    be the device's.
    """
    assert record.memory is not None
    ranks = record.memory.ranks
    if record.emulation is not None and budget is None:
        held = record.emulation.allocator.peak_reserved_bytes
    elif record.offload is not None and record.provenance == "measured":
        held = max(rank.device_peak_bytes for rank in record.offload.ranks)
    elif any(rank.peak_reserved_bytes for rank in ranks):
        held = max(rank.peak_reserved_bytes or 0 for rank in ranks)
    else:
        held = max(max(rank.init_peak_bytes, rank.peak_allocated_bytes) for rank in ranks)
    highest = max(ranks, key=lambda rank: max(rank.init_peak_bytes, rank.peak_allocated_bytes))
    if highest.init_peak_bytes > highest.peak_allocated_bytes:
        return held, "init"
    return held, next((point.where for point in highest.points if point.point == "peak"), None)


def judged(record: Record, budget: int | None) -> BatchTry:
    """Return what a launch that `DECIDES` says of its size; ``budget`` in bytes, ``None`` for the device's own."""
    assert record.launch is not None
    size, failure = record.cell.train_micro_batch_size_per_gpu, record.failure
    made = BatchTry(
        train_micro_batch_size_per_gpu=size,
        how=record.provenance,
        status=record.status,
        fits=record.status == "completed",
        wall_time_s=record.launch.wall_time_s,
    )
    if record.status != "completed":
        phase = failure and (failure.phase or failure.activity)
        return made.model_copy(update={"phase": phase, "reason": record.reason})
    held, phase = _peak(record, budget)
    reason = None
    if budget is not None and held > budget:
        reason = f"{size_text(held)} are above the budget of {size_text(budget)}"
    elif record.emulation is not None and not record.emulation.fits:
        refused = record.emulation.allocator.out_of_memory_bytes or 0
        reason = f"the modelled allocator finds no room for {size_text(refused)}"
    return made.model_copy(update={"fits": reason is None, "peak_bytes": held, "phase": phase, "reason": reason})


def predicted(planned: PlannedCell, budget: int, size: int) -> BatchTry | None:
    """Return what the formulas of bench.zero.memory say of a size; ``None`` where they have no answer."""
    cell, params = with_size(planned, size).cell, planned.params
    if params is None:
        return None
    peaks = [_predicted_bytes(cell, planned, params, rank) for rank in {0, cell.world_size - 1}]
    if None in peaks:
        return None
    held = max(int(peak) for peak in peaks if peak is not None)
    over = f"{size_text(held)} are above the budget of {size_text(budget)}" if held > budget else None
    return BatchTry(
        train_micro_batch_size_per_gpu=size,
        how="predicted",
        status="completed",
        fits=over is None,
        peak_bytes=held,
        reason=over,
    )


def _predicted_bytes(cell: Cell, planned: PlannedCell, params: ParamCount, rank: int) -> float | None:
    at = [expected(cell, planned.config, params, point, rank, apart=True) for point in ("init", "peak")]
    return max(sum(found.values()) for found in at) if all(at) else None
