"""Why DeepSpeed's traffic differs from the ZeRO paper's, in sentences, each with a public source."""

from typing import Any

from bench.cell import Cell
from bench.models.modules import calls
from bench.models.training import trained_modules
from bench.record import Practice
from bench.zero.practice import practice, step_calls
from bench.zero.stages import STRATEGIES
from bench.zero.theory import BYTES_PER_ELEMENT

_GATHER, _SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"


def sentences(
    cell: Cell,
    found: Practice,
    num_params: int,
    backend: str,
    config: dict[str, Any] | None,
    *,
    trained: int | None = None,
) -> list[str]:
    """Return one sentence for each cause by which ``found`` differs from the paper's volumes.

    ``found`` is the prediction for ``cell`` and ``num_params`` its psi. Without ``config`` (the model's
    ``config.json``) what recomputation and a tied embedding add is left out. ``trained``: parameters that are not
    frozen, of which alone there are gradients to reduce.
    """
    if cell.world_size == 1:
        return []
    stage = STRATEGIES[cell.strategy].zero_stage
    psi = num_params * BYTES_PER_ELEMENT[cell.dtype]
    moved = {(volume.phase, volume.op): volume.num_bytes for volume in found.volumes}
    own = psi if trained is None else trained * BYTES_PER_ELEMENT[cell.dtype]
    said: list[str] = []
    if own < psi:
        said.append(
            f"Only {own / psi:.3g} of psi is trained: frozen parameters are never reduced and, below stage 3, never "
            "gathered; stage 3 gathers them like all others."
        )
    if stage in (1, 2):
        said += _stages_1_and_2(cell, stage, moved, own)
    if stage == 3:
        said += _stage_3(cell, moved, psi, own)
        said += _recompute_and_ties(cell, found, backend, config) if config else []
    if cell.strategy == "fsdp2":
        said += _fsdp2(cell, moved, psi)
    said += [
        f"gloo has no true reduce-scatter: {op} costs on the wire what an all-reduce costs (bench/wire.py)."
        for op in (_SCATTER, "reduce")
        if backend == "gloo" and ("backward", op) in moved
    ]
    return said


def _factor(num_bytes: float, psi: int) -> str:
    return f"{num_bytes / psi:.3g} psi"


def _stages_1_and_2(cell: Cell, stage: int, moved: dict[tuple[str, str], int], psi: int) -> list[str]:
    said = []
    if ("backward", "all_reduce") in moved:
        said.append(
            f"Stage {stage} all-reduces gradients (2 psi on the wire) where the paper reduce-scatters them (psi); "
            "DeepSpeed's defaults reduce_scatter and use_multi_rank_bucket_allreduce select this "
            "(deepspeedai/DeepSpeed#5758, #7059, #6463)."
        )
    elif ("backward", "reduce") in moved:
        said.append(
            "With use_multi_rank_bucket_allreduce off, gradients are reduced to their owners: the paper's psi "
            "(deepspeedai/DeepSpeed PR 4695)."
        )
    if stage == 2 and cell.gradient_accumulation_steps > 1:
        said.append(_each_micro_step(cell, "reduces"))
    padding = moved.get(("step", _GATHER), psi) - psi
    if padding:
        said.append(
            f"Padding: the flat parameters are rounded up to a multiple of 2 N, {padding:,} bytes more (DeepSpeed "
            "0.19.8, runtime/zero/stage_1_and_2.py, flatten_dense_tensors_aligned)."
        )
    return said


def _each_micro_step(cell: Cell, verb: str) -> str:
    return (
        f"Stages 2 and 3 work at every micro-step: this cell {verb} {cell.gradient_accumulation_steps} times per "
        "optimizer step; the paper has no accumulation (deepspeedai/DeepSpeed#2252, #373)."
    )


def _fsdp2(cell: Cell, moved: dict[tuple[str, str], int], psi: int) -> list[str]:
    steps = cell.gradient_accumulation_steps
    forward, backward = (moved.get((phase, _GATHER), 0) / steps for phase in ("forward", "backward"))
    said = [
        f"FSDP2 gathers {_factor(forward, psi)} in forward and {_factor(backward, psi)} in backward: what belongs to "
        "no block (embedding, head, last norm) stays between the two (torch 2.13, distributed/fsdp/_fully_shard, "
        "reshard_after_forward)."
    ]
    if steps > 1:
        said.append(
            f"FSDP2 works at every micro-step: this cell gathers and reduces {steps} times per optimizer step (torch "
            "2.13, set_requires_gradient_sync is on by default)."
        )
    padding = moved.get(("backward", _SCATTER), 0) - psi * steps
    if padding:
        said.append(
            f"Padding: every parameter is rounded up to a multiple of N rows, {padding:,} bytes more in the "
            "reduce-scatters (torch 2.13, distributed/fsdp/_fully_shard/_fsdp_collectives.py)."
        )
    return said


def _stage_3(cell: Cell, moved: dict[tuple[str, str], int], psi: int, own: int) -> list[str]:
    steps = cell.gradient_accumulation_steps
    said = [_each_micro_step(cell, "gathers and reduces")] if steps > 1 else []
    forward, backward = (
        sum(moved.get((phase, op), 0) for op in (_GATHER, *(["all_reduce"] if phase == "forward" else []))) / steps
        for phase in ("forward", "backward")
    )
    if not backward:
        said.append(
            "Nothing is gathered again in backward: parameters within stage3_max_live_parameters and "
            f"stage3_max_reuse_distance stay from forward on, so a micro-step gathers {_factor(forward, psi)} instead "
            "of 2 psi (DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py)."
        )
    else:
        said.append(
            f"A micro-step gathers {_factor(forward, psi)} in forward and {_factor(backward, psi)} in backward where "
            "the paper has psi and psi: what stage3_max_live_parameters, stage3_max_reuse_distance and the prefetch "
            "let stay is not gathered again, and some of what backward needs is fetched before forward ends "
            "(DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py)."
        )
    if persistent := moved.get(("step", _GATHER)):
        said.append(
            "Parameters of at most stage3_param_persistence_threshold elements stay whole and are gathered once, "
            f"after the optimizer step: {persistent:,} bytes (DeepSpeed 0.19.8, runtime/zero/stage3.py, _post_step)."
        )
    if ("backward", "all_reduce") in moved or ("forward", "all_reduce") in moved:
        said.append(
            "Some collectives are all-reduces, with twice the bytes on the wire, because reduce_scatter is off or "
            "stage3_use_all_reduce_for_fetch_params on (deepspeedai/DeepSpeed#1173)."
        )
    padding = moved.get(("backward", _SCATTER), 0) - own * steps
    if padding > 0:
        said.append(
            f"Padding: every parameter is rounded up to a multiple of N, {padding:,} bytes more in the reduce-scatters "
            "(DeepSpeed 0.19.8, runtime/comm/coalesced_collectives.py)."
        )
    return said


def _recompute_and_ties(cell: Cell, found: Practice, backend: str, config: dict[str, Any]) -> list[str]:
    said = []
    if cell.activation_checkpointing:
        without = practice(cell.model_copy(update={"activation_checkpointing": False}), config, backend)
        more = found.comm_bytes_per_step - without.comm_bytes_per_step if without else 0
        said.append(
            f"Recomputation changes the gathers by {more:+,} bytes against a run without it: a block whose parameters "
            "were let go is gathered for the recomputation and, if let go again, for its backward "
            "(deepspeedai/DeepSpeed#2928)."
            if more
            else "Recomputation gathers nothing again: a block's parameters stay from there to its backward (DeepSpeed "
            "0.19.8, runtime/zero/partitioned_param_coordinator.py)."
        )
    model = trained_modules(config, cell.lora, cell.freeze)
    twice = [p for m in calls(model) for p in m.parameters if m.name == "lm_head"] if model else []
    step = step_calls(cell, config) or []
    tied = [p for p in twice if p.name != "lm_head.weight"]
    uses = sum(parameter in call.carries for call in step for parameter in tied)
    if tied and uses > cell.gradient_accumulation_steps:
        said.append(
            f"The tied embedding counts once in psi and is gathered {uses / cell.gradient_accumulation_steps:g} times "
            "per micro-step, at both its uses (DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py)."
        )
    return said
