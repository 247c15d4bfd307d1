"""The tensors that an engine holds, by what they are: read from the real objects, DeepSpeed's, DDP's and FSDP2's.

DeepSpeed's attributes are named as in 0.19.8 and, where they differ, as in older releases. An attribute that a release
does not have holds nothing here; what it would have held then falls to another category.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bench.worker.fsdp2 import FSDP2Engine, local

STAGE_3 = "_DeepSpeedZeroOptimizer_Stage3__"
_MASTERS = (
    "single_partition_of_fp32_groups",  # stages 1 and 2, BF16_Optimizer's groups below
    "fp32_partitioned_groups_flat",  # stage 3
    "fp32_groups_flat_partition",
    "fp32_groups",
    "fp32_groups_flat",
    "masters",  # TorchEngine
)
_BUCKETS = ("ipg_buckets", "ipg_buffer", f"{STAGE_3}ipg_bucket_flat_buffer")
_OFFLOAD = (
    "param_buffer_of_bit16_for_cpu_offload_groups",
    "temp_grad_buffer_for_cpu_offload",
    "temp_grad_buffer_for_gpu_offload",
    "accumulated_grads_in_cpu",
)
_GRADIENTS = (
    "averaged_gradients",
    "all_grad_tensors",
    "grads_in_partition",
    "grad_partitions_flat_buffer",
    f"{STAGE_3}param_id_to_grad_partition",
    "fp32_groups_gradients_flat",
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that ``value`` is or contains."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "buffer"):  # DeepSpeed's bucket of one dtype
        yield from tensors_in(value.buffer)


def attributes(among: Iterable[Any], names: tuple[str, ...]) -> list[torch.Tensor]:
    """Return the tensors that the objects of ``among`` have under ``names``."""
    return [tensor for owner in among for name in names for tensor in tensors_in(getattr(owner, name, None))]


def owners(engine: Any) -> list[Any]:
    """Return the objects that hold a rank's states: the engine, its optimizer wrapper, the optimizer itself."""
    owners, owner = [engine], getattr(engine, "optimizer", None)
    while owner is not None and all(owner is not other for other in owners):
        owners.append(owner)
        owner = getattr(owner, "optimizer", None)
    return owners


def masters_and_moments(engine: Any) -> list[torch.Tensor]:
    """Return what the optimizer updates and its states."""
    among = owners(engine)
    found = attributes(among, _MASTERS)
    for owner in among:
        state = getattr(owner, "state", None)
        for param, values in state.items() if isinstance(state, dict) else ():
            found += [*tensors_in(param), *tensors_in(values)]
        groups = getattr(owner, "param_groups", None)
        for group in groups if isinstance(groups, list) else ():
            found += tensors_in(group.get("params"))
    return found


def gradients(engine: Any) -> list[torch.Tensor]:
    """Return the gradients that are held now: those of the parameters, and the wrapper's shards of them."""
    params = [*engine.module.parameters()]
    if isinstance(engine, FSDP2Engine):  # in backward the model has whole parameters in place of these
        params += engine.shards
    of_params = [local(param.grad) for param in params if param.grad is not None]
    return of_params + attributes(owners(engine), _GRADIENTS)


def buckets(engine: Any) -> list[torch.Tensor]:
    """Return the buckets that exist now; at stages 1 and 2 they live only while gradients are reduced."""
    return attributes(owners(engine), _BUCKETS)


def offload_buffers(engine: Any) -> list[torch.Tensor]:
    """Return what offload keeps besides: fp32 gradients, copies in 16 bits, and what gradients are moved through."""
    found = attributes(owners(engine), _OFFLOAD)
    if not found and not getattr(engine.optimizer, "offload_optimizer", False):
        return []
    masters = attributes(owners(engine), _MASTERS)
    return found + [master.grad for master in masters if master.grad is not None]


def held(engine: Any) -> dict[str, list[torch.Tensor]]:
    """Return the tensors of every object that is known, by category."""
    fsdp2 = isinstance(engine, FSDP2Engine)
    params = engine.shards if fsdp2 else list(engine.module.parameters())
    sharded = [param for param in params if hasattr(param, "ds_tensor")]
    gathered = [param for param in sharded if not getattr(param, "ds_persist", False)]
    return {
        "parameters": [param.ds_tensor if hasattr(param, "ds_tensor") else local(param.data) for param in params],
        "persisted_parameters": [param.data for param in sharded if getattr(param, "ds_persist", False)],
        "gathered_parameters": engine.gathered() if fsdp2 else [param.data for param in gathered],
        "optimizer_states": masters_and_moments(engine),
        "zero_buckets": buckets(engine),
        "gradients": gradients(engine),
        "offload_buffers": offload_buffers(engine),
        "secondary_parameters": attributes(sharded, ("ds_secondary_tensor",)),
    }


def _numel(tensors: Iterable[torch.Tensor]) -> int:
    """Sum the elements of ``tensors``, those that two of them share once."""
    spans = {(tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.numel()) for tensor in tensors}
    reached: dict[int, int] = {}
    total = 0
    for storage, first, count in sorted(spans):
        end = first + count
        total += max(0, end - max(first, reached.get(storage, 0)))
        reached[storage] = max(end, reached.get(storage, 0))
    return total


def shards(engine: Any) -> dict[str, int | None]:
    """Return the content of ``bench.record.Shards``: elements really held, padding included."""
    holdings = held(engine)
    params, grads = holdings["parameters"], holdings["gradients"]
    own = {param.untyped_storage().data_ptr() for param in params}
    # In fp32 the optimizer updates the parameters themselves; a state without dimensions is Adam's step counter.
    states = [state for state in holdings["optimizer_states"] if state.untyped_storage().data_ptr() not in own]
    return {
        "parameters": _numel(params),
        "gradients": _numel(grads) if grads else None,
        "optimizer_states": _numel(state for state in states if state.dim()),
    }


def fingerprint(engine: Any) -> list[int] | None:
    """Return a sum over the bits of each parameter, equal where they are; ``None`` where ranks hold shards."""
    params = list(engine.module.parameters())
    if isinstance(engine, FSDP2Engine) or any(hasattr(param, "ds_tensor") for param in params):
        return None
    integers = {2: torch.int16, 4: torch.int32}
    return [
        int(param.detach().contiguous().view(integers[param.element_size()]).sum(dtype=torch.int64)) for param in params
    ]
