"""The bytes that DeepSpeed 0.19.8 really moves in one settled optimizer step, from its code. Pure arithmetic.

Data collectives only; control collectives (at most 8 elements) are left out. Padding is in. The sources:

- stage 0: ``runtime/engine.py``, ``allreduce_gradients`` and ``allreduce_no_retain``: one all-reduce of all gradients
  per optimizer step, cut into calls of 5e8 elements.
- stages 1 and 2: ``runtime/zero/stage_1_and_2.py``, ``average_tensor``: gradients are all-reduced, and with
  ``use_multi_rank_bucket_allreduce`` off (and ``reduce_scatter`` and ``contiguous_gradients`` on) reduced to their
  owners. Stage 1 does so at the last micro-step, stage 2 at every one (``reduce_ready_partitions_and_remove_grads``).
  Then ``runtime/utils.py``, ``all_gather_into_tensor_dp_groups``: one gather of the flat parameters, which
  ``flatten_dense_tensors_aligned`` has padded to a multiple of 2 N.
- stage 3: ``runtime/zero/stage3.py``, ``__reduce_and_partition_ipg_grads``: a reduce-scatter of every gradient, each
  padded to a multiple of N (``runtime/comm/coalesced_collectives.py``), at every micro-step. Gathers are in
  bench.zero.gathers.
- ddp: torch's DistributedDataParallel all-reduces every gradient once, at the last micro-step.
- fsdp2: torch 2.13's ``fully_shard``, a group per block and one for the rest. Every micro-step gathers every group in
  forward, in backward every block again (not the rest, which stays), and reduce-scatters every gradient; each parameter
  is padded to a multiple of N rows (``distributed/fsdp/_fully_shard/_fsdp_collectives.py``). One rank sends nothing.

Frozen parameters are in no gradient bucket and in no flat partition of the optimizer: stages 0 to 2 move the trained
ones alone, stage 3 gathers all and reduces the trained ones (bench.models.training has which those are).

Other keys (bucket sizes at stages 1 and 2, ``overlap_comm``, ``round_robin_gradients``, ``allgather_partitions``,
``allgather_bucket_size``, ``sub_group_size``) change no volume. There is no answer (``None``) for a model family
without a module tree, for ``stage3_module_granularity_threshold`` (it merges modules), for ZeRO++, and where a piece of
at most 8 elements would be reduced in a call of its own, which the measurement files under control; nor for adapters
under a ``stage3_model_persistence_threshold``, for they are made after all other parameters, nor for FSDP2 with frozen
parameters.
"""

from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

from bench import wire
from bench.cell import SETTLING_STEPS, Cell
from bench.models.modules import Module, Parameter, calls, parameters
from bench.models.training import trained_modules
from bench.record import Practice, Volume
from bench.zero.defaults import SIZES
from bench.zero.gathers import Call, Limits, gathers, padded
from bench.zero.stages import HPZ_KEY, STRATEGIES
from bench.zero.theory import BYTES_PER_ELEMENT, TORCH_DTYPE

DEEPSPEED, TRANSFORMERS, TORCH, PEFT = "0.19.8", "5.24.", "2.13.", "0.21."
# A collective of at most so many elements steers the step (a norm, an overflow flag); it carries no model data.
CONTROL_ELEMENTS = 8
_LIMITS = {
    f"stage3_{name}": name
    for name in (
        "prefetch_bucket_size",
        "max_live_parameters",
        "max_reuse_distance",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "use_all_reduce_for_fetch_params",
        "allgather_sequential",
    )
}


def holds_for(stack: dict[str, str], strategy: str) -> bool:
    """Whether these rules describe a row that ran with ``stack`` (versions by package).

    Other releases of DeepSpeed may move other bytes; at stage 3 the order of module calls is that of one release of
    transformers too, and of peft where adapters are trained.
    """
    stage = STRATEGIES[strategy].zero_stage
    if strategy == "fsdp2":
        return stack.get("torch", "").startswith(TORCH)
    return (stage is None or stack.get("deepspeed") == DEEPSPEED) and (
        stage != 3
        or (stack.get("transformers", "").startswith(TRANSFORMERS) and stack.get("peft", PEFT).startswith(PEFT))
    )


def practice(cell: Cell, config: dict[str, Any], backend: str) -> Practice | None:
    """Return what one settled optimizer step of ``cell`` moves on each rank under DeepSpeed 0.19.8.

    ``config`` is the model's ``config.json``; ``backend`` (``gloo``, ``nccl``) chooses the wire model. Bytes are those
    of each collective's larger side, as in ``bench.record.Collective``. ``None`` where the module's text says so.
    """
    found = step_calls(cell, config)
    if found is None:
        return None
    width = BYTES_PER_ELEMENT[cell.dtype]
    sums: Counter[tuple[str, str]] = Counter()
    for call in found:
        if call.num_elements > CONTROL_ELEMENTS:
            sums[call.phase, call.op] += call.num_elements * width
    sent = [wire.wire_bytes(op, num_bytes, cell.world_size, backend) for (_, op), num_bytes in sums.items()]
    return Practice(
        volumes=[
            Volume(phase=phase, op=op, dtype=TORCH_DTYPE[cell.dtype], num_bytes=num_bytes)
            for (phase, op), num_bytes in sums.items()
        ],
        comm_bytes_per_step=sum(sums.values()),
        comm_wire_bytes_per_step=sum(size for size in sent if size is not None) if None not in sent else None,
    )


def step_calls(cell: Cell, config: dict[str, Any]) -> list[Call] | None:
    """Return the collectives of one settled step: gathers one by one, reductions summed up per micro-step."""
    model = trained_modules(config, cell.lora, cell.freeze, input_gradients=bool(cell.activation_checkpointing))
    if model is None:
        return None
    held = parameters(model)
    if any(parameter.numel <= CONTROL_ELEMENTS for parameter in held):
        return None
    held = [parameter for parameter in held if parameter.trainable]
    stage = STRATEGIES[cell.strategy].zero_stage
    if cell.strategy == "fsdp2":
        if len(held) < len(parameters(model)):
            return None
        return _fsdp2(cell, model) if cell.world_size > 1 else []
    if not stage:
        return [Call("backward", "all_reduce", sum(parameter.numel for parameter in held))]
    if stage < 3:
        return _stage_1_or_2(cell, stage, held)
    settings = cell.zero_optimization
    if (
        settings.get("stage3_module_granularity_threshold")
        or settings.get(HPZ_KEY, 1) > 1  # it gathers within a node what it has gathered once
        or (cell.lora is not None and "stage3_model_persistence_threshold" in settings)
    ):
        return None
    limits: dict[str, Any] = {_LIMITS[key]: value for key, value in settings.items() if key in _LIMITS}
    if settings.get("stage3_allgather_sequential"):
        limits["prefetch_bucket_size"] = 1  # runtime/engine.py, _configure_zero_optimizer
    fetched = gathers(
        model,
        Limits(**limits),
        world_size=cell.world_size,
        gradient_accumulation_steps=cell.gradient_accumulation_steps,
        activation_checkpointing=cell.activation_checkpointing,
        num_steps=SETTLING_STEPS + 1,
    )
    return fetched + _stage_3_reductions(cell, held) * cell.gradient_accumulation_steps


def _fsdp2(cell: Cell, model: Module) -> list[Call]:
    """One gather and one reduction of a group each; recomputation finds a block's parameters gathered."""

    def elements(held: list[Parameter]) -> int:
        return sum(parameter.numel // parameter.rows * padded(parameter.rows, cell.world_size) for parameter in held)

    blocks = [elements(parameters(module)) for module in calls(model) if module.block]
    rest = elements(parameters(model)) - sum(blocks)
    gather = "all_gather_into_tensor"
    one = [Call("forward", gather, size) for size in (rest, *blocks)]
    one += [Call("backward", gather, size) for size in reversed(blocks)]
    one += [Call("backward", "reduce_scatter_tensor", size) for size in (*reversed(blocks), rest)]
    return one * cell.gradient_accumulation_steps


def _stage_1_or_2(cell: Cell, stage: int, held: list[Parameter]) -> list[Call] | None:
    settings, world_size = cell.zero_optimization, cell.world_size
    num_elements = sum(parameter.numel for parameter in held)
    sliced = settings.get("reduce_scatter", True) and settings.get("contiguous_gradients", True)
    to_owner = sliced and not settings.get("use_multi_rank_bucket_allreduce", True)
    cut = to_owner or any(
        parameter.numel > settings.get("reduce_bucket_size", SIZES["reduce_bucket_size"]) for parameter in held
    )
    flat = padded(num_elements, 2 * world_size)
    if sliced and cut and _smallest_piece(held, settings, flat // world_size, world_size) <= CONTROL_ELEMENTS:
        return None
    reduction = Call("backward", "reduce" if to_owner else "all_reduce", num_elements)
    gather = [Call("step", "all_gather_into_tensor", flat)] if world_size > 1 else []
    return [reduction] * (cell.gradient_accumulation_steps if stage == 2 else 1) + gather


def _smallest_piece(held: list[Parameter], settings: dict[str, Any], partition: int, world_size: int) -> int:
    """Return the size of the smallest piece into which the borders of the ranks' partitions cut a gradient."""
    if settings.get("round_robin_gradients"):
        held = [parameter for rank in range(world_size) for parameter in held[rank::world_size]]
    ends = list(accumulate(parameter.numel for parameter in held))
    cuts = sorted({0, *ends, *range(partition, ends[-1], partition)})
    pieces: list[int] = [end - start for start, end in pairwise(cuts)]
    return min(pieces)


def _stage_3_reductions(cell: Cell, held: list[Parameter]) -> list[Call]:
    """One micro-step: a padded reduce-scatter of each gradient, whatever the buckets.

    With ``reduce_scatter`` off the buckets are all-reduced, but a gradient larger than a bucket, or any without
    ``contiguous_gradients``, is still reduce-scattered.
    """
    settings = cell.zero_optimization
    bucket_size = settings.get("reduce_bucket_size", SIZES["reduce_bucket_size"])
    whole = not settings.get("reduce_scatter", True) and settings.get("contiguous_gradients", True)
    reduced = sum(parameter.numel for parameter in held if whole and parameter.numel <= bucket_size)
    scattered = sum(
        padded(parameter.numel, cell.world_size) for parameter in held if not whole or parameter.numel > bucket_size
    )
    return [Call("backward", "all_reduce", reduced), Call("backward", "reduce_scatter_tensor", scattered)]
