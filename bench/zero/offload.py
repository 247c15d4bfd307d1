"""What offload puts into host memory and moves there and back, as DeepSpeed 0.19.8 has it. Pure arithmetic.

Symbols as in bench.zero.memory; S: elements of this rank's shards, padding included; g: micro-steps of an optimizer
step. Sources: ``runtime/zero/stage_1_and_2.py`` (``async_accumulate_grad_in_cpu_via_gpu``,
``async_inplace_copy_grad_to_fp32_buffer_from_gpu``, ``step``), ``runtime/zero/stage3.py`` (``partition_grads``,
``_offload_grad_partition_at_boundary``, ``_reassign_or_swap_out_partitioned_parameters``).
"""

from typing import Any

from bench.cell import Cell
from bench.models.counts import ParamCount
from bench.zero.memory import Bytes, RankSizes, peaks, predict
from bench.zero.practice import step_calls


def offload(cell: Cell, config: dict[str, Any], params: ParamCount, rank: int, *, apart: bool) -> dict[str, int]:
    """Return what ``rank`` should have, by the names of ``bench.record.RankOffload``; those with a formula.

    There is none where parts of the model are frozen. Steady: what is there between two optimizer steps, activations
    and batches gone. ``apart``: whether host and device are two memories; where they are one (CPU), DeepSpeed leaves
    out some copies.
    """
    at = RankSizes(cell, config, params, rank)
    if not (cell.offloads_optimizer or cell.offloads_param) or not at.known or at.frozen:
        return {}
    return _stage_3(at, apart) if at.stage == 3 else _stages_1_and_2(at)


def _pins(cell: Cell, section: str) -> bool:
    return bool(cell.zero_optimization.get(section, {}).get("pin_memory", True))


def _stages_1_and_2(at: RankSizes) -> dict[str, int]:
    """The fp32 gradient of the partition goes to the host (4 B), its updated parameters come back (w B).

    At stage 2, while it accumulates, every whole gradient that touches the partition goes to the host at each
    micro-step, and comes back from the second on. Stage 1 accumulates on the device.
    """
    shard, steps = at.flat // at.ranks, at.cell.gradient_accumulation_steps
    first, last = at.partition
    own = max(0, min(last, at.total) - first)
    on_host, on_device = at.offload_buffers
    accumulated = at.touching * at.width if at.stage == 2 and steps > 1 else 0
    return {
        "device_steady_bytes": at.flat * at.width + on_device,
        "host_steady_bytes": 12 * shard + on_host,
        "pinned_bytes": (4 * shard + on_host) if _pins(at.cell, "offload_optimizer") else 0,
        "host_to_device_bytes": at.width * shard + (steps - 1) * accumulated,
        "device_to_host_bytes": 4 * own + steps * accumulated,
    }


def _stage_3(at: RankSizes, apart: bool) -> dict[str, int]:
    """At each micro-step the gradients go to the host (w B), and from there to the device, to be added to or converted
    (w B); after the last, they go as fp32 (4 B).

    The updated parameters come back (w S); where they are offloaded they stay, and every gather of a parameter brings
    this rank's shard of it over. Where host and device are one, the second micro-step on adds in place, and a single
    rank uses its shards as they are.
    """
    cell, shard, steps = at.cell, at.sharded, at.cell.gradient_accumulation_steps
    optimizer, param = cell.offloads_optimizer, cell.offloads_param
    on_host = (12 + at.width) * shard + at.offload_buffers[0] if optimizer else 0
    pinned = (4 + at.width) * shard if optimizer and _pins(cell, "offload_optimizer") else 0
    pinned += at.width * shard if param and _pins(cell, "offload_param") else 0
    on_device = at.bucket + at.persisted + (0 if param else at.width * shard)
    found = {
        "device_steady_bytes": on_device + (0 if optimizer else (12 + at.width) * shard),
        "host_steady_bytes": on_host + (at.width * shard if param else 0),
        "pinned_bytes": pinned,
    }
    if param and at.ranks == 1:
        del found["device_steady_bytes"]
        return found
    calls = step_calls(cell, at.config)
    if (steps > 1 and not apart) or (param and calls is None):
        return found
    own = sum(max(0, min(part, size - at.rank * part)) for size in at.sizes for part in (-(-size // at.ranks),))
    gathered = sum(call.num_elements for call in calls or () if "gather" in call.op) // at.ranks
    over = steps * own if optimizer else 0
    return found | {
        "host_to_device_bytes": at.width * (over + (gathered if param else shard)),
        # Without the optimizer, its fp32 parameters go over as they are, and are converted there.
        "device_to_host_bytes": (steps * at.width + 4) * own if optimizer else 4 * shard,
    }


def on_host(at: RankSizes, found: Bytes) -> Bytes:
    """Return what of ``found``, a moment by category, is in host memory."""
    host: Bytes = {}
    if at.cell.offloads_optimizer:
        host |= {name: found[name] for name in ("optimizer_states", "step_temporaries") if name in found}
        if "offload_buffers" in found:
            host["offload_buffers"] = at.offload_buffers[0]
        if at.stage == 3 and "gradients" in found:
            host["gradients"] = found["gradients"]
    if at.cell.offloads_param and "parameters" in found:
        host["parameters"] = found["parameters"]
    return host


def expected(
    cell: Cell, config: dict[str, Any], params: ParamCount, point: str, rank: int = 0, *, apart: bool
) -> Bytes:
    """Return what `bench.zero.memory.predict` has, of the device alone where host and device are ``apart``."""
    if not apart or not (cell.offloads_optimizer or cell.offloads_param):
        return predict(cell, config, params, point, rank)
    at = RankSizes(cell, config, params, rank)
    moments = peaks(at) if point == "peak" else [predict(cell, config, params, point, rank)]
    on_device = [
        {name: size - host.get(name, 0) for name, size in found.items()}
        for found, host in ((found, on_host(at, found)) for found in moments)
    ]
    return max(on_device, key=lambda found: sum(found.values()), default={})


def device_peak_bytes(cell: Cell, config: dict[str, Any], params: ParamCount, rank: int = 0) -> float | None:
    """Return the highest bytes that ``rank`` should hold on its device in a step; ``None`` without a formula."""
    found = expected(cell, config, params, "peak", rank, apart=True)
    return sum(found.values()) if found else None


def host_peak_bytes(cell: Cell, config: dict[str, Any], params: ParamCount, rank: int = 0) -> float | None:
    """Return the same for its host memory."""
    at = RankSizes(cell, config, params, rank)
    return max((sum(on_host(at, found).values()) for found in peaks(at)), default=None)
