"""What an engine really runs, read from its objects after it was built: not the configuration it was given.

Names are DeepSpeed's keys. A value that this release of DeepSpeed keeps nowhere is left out, never guessed.
"""

import os
from typing import Any

import torch
from torch import nn

from bench.models.catalog import has_experts
from bench.worker.engine import inner_optimizer, optimizer_steps
from bench.worker.fsdp2 import FSDP2Engine
from bench.worker.leaves import leaf_modules
from bench.worker.torch_engine import TorchEngine
from bench.worker.training import described

# Attributes of the ZeRO optimizers, by DeepSpeed's key. Those of stage 3's parameter fetching live in objects below it.
_OPTIMIZER = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "round_robin_gradients",
    "use_multi_rank_bucket_allreduce",
    "sub_group_size",
)
_OFFLOAD = {
    "stage3_prefetch_bucket_size": "_prefetch_bucket_sz",
    "stage3_max_live_parameters": "_max_available_parameters_in_numel",
    "stage3_max_reuse_distance": "_max_reuse_distance_in_numel",
    "stage3_param_persistence_threshold": "param_numel_persistence_threshold",
    "stage3_model_persistence_threshold": "model_persistence_threshold",
}


def _dtype(value: Any) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")


def _checkpointing(model: nn.Module) -> str:
    """Return how activations are recomputed: ``none``, ``non-reentrant`` or ``reentrant``."""
    blocks = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    if not blocks:
        return "none"
    function = getattr(blocks[0], "_gradient_checkpointing_func", None)
    reentrant = getattr(function, "keywords", {}).get("use_reentrant")
    if reentrant is None:
        return "unknown"
    return "reentrant" if reentrant else "non-reentrant"


def _dropout(model: nn.Module) -> float:
    """Return the largest dropout that the model's configuration asks for, defaults of its family included."""
    config = getattr(model, "config", None)
    values = vars(config).items() if config is not None else ()
    # Those of heads that a causal language model has not are in its configuration too.
    found = {k: v for k, v in values if "drop" in k and not k.startswith(("summary_", "classifier"))}
    return max((float(v) for v in found.values() if isinstance(v, int | float)), default=0.0)


def _attention(model: nn.Module) -> dict[str, str]:
    """Return which implementation of attention the model runs, as transformers names it."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return {} if chosen is None else {"attn_implementation": str(chosen)}


def _implementation(group: dict[str, Any]) -> str:
    """Return which of PyTorch's implementations of an optimizer steps over ``group``."""
    return "fused" if group.get("fused") else "foreach" if group.get("foreach") else "for-loop"


def _experts(model: nn.Module) -> dict[str, str]:
    """Return how a mixture of experts runs them, as transformers names it; nothing for other models."""
    config = getattr(model, "config", None)
    if config is None or not has_experts(config.to_dict()):
        return {}
    chosen = getattr(config, "_experts_implementation", None)
    return {} if chosen is None else {"experts_implementation": str(chosen)}


def _common(engine: Any, model: nn.Module) -> dict[str, Any]:
    inner = inner_optimizer(engine)
    group = inner.param_groups[0]
    # Stage 3 hands its groups to the optimizer one at a time; between steps only the states know them.
    masters = [param for group in inner.param_groups for param in group["params"]] or list(inner.state)
    return {
        "optimizer": type(inner).__name__,
        "lr": float(group["lr"]),
        "weight_decay": float(group["weight_decay"]),
        "optimizer_implementation": _implementation(group),
        "master_dtype": _dtype(masters[0].dtype) if masters else None,
        "optimizer_steps_at_start": optimizer_steps(engine),
        "world_size": torch.distributed.get_world_size(),
        "model_dtype": _dtype(next(model.parameters()).dtype),
        "num_trainable_params": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad),
        "activation_checkpointing": _checkpointing(model),
        **(trained := described(model)),
        "dropout": max(_dropout(model), trained.get("lora_dropout", 0.0)),
        **_attention(model),
        **_experts(model),
        "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1),
    }


def effective_settings(engine: Any) -> dict[str, Any]:
    """Return the settings that ``engine`` runs with; the record keeps them beside what was asked."""
    if isinstance(engine, TorchEngine):
        sharded = isinstance(engine, FSDP2Engine)
        return _common(engine, engine.module) | {
            "engine": "torch fully_shard" if sharded else "torch DistributedDataParallel",
            "zero_stage": None,
            "optimizer_wrapper": type(engine).__name__ if engine.low_precision else None,
            "gradient_accumulation_steps": engine.gas,
            "gradient_clipping": engine.clip,
            "communication_data_type": _dtype(engine.params[0].dtype),
            "gradient_accumulation_dtype": _dtype(engine.params[0].dtype),
        }
    wrapper = engine.optimizer
    fetching = getattr(wrapper, "parameter_offload", None)
    found = _common(engine, engine.module) | {
        "engine": type(engine).__name__,
        "zero_stage": int(engine.zero_optimization_stage()),
        "optimizer_wrapper": None if isinstance(wrapper, torch.optim.Optimizer) else type(wrapper).__name__,
        "dp_world_size": int(engine.dp_world_size),
        "train_batch_size": int(engine.train_batch_size()),
        "train_micro_batch_size_per_gpu": int(engine.train_micro_batch_size_per_gpu()),
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
        "gradient_clipping": float(getattr(wrapper, "clip_grad", engine.gradient_clipping())),
        "communication_data_type": _dtype(getattr(wrapper, "communication_data_type", engine.communication_data_type)),
        "gradient_accumulation_dtype": _dtype(
            getattr(wrapper, "gradient_accumulation_dtype", engine.get_data_types()[1])
        ),
        "offload_optimizer": bool(getattr(wrapper, "cpu_offload", getattr(wrapper, "offload_optimizer", False))),
        "offload_param": bool(getattr(wrapper, "offload_param", False)),
    }
    found |= {key: getattr(wrapper, key) for key in _OPTIMIZER if hasattr(wrapper, key)}
    found |= {key: getattr(fetching, name) for key, name in _OFFLOAD.items() if hasattr(fetching, name)}
    if found["zero_stage"] == 3 and (leaves := leaf_modules(engine)):
        found["z3_leaf_modules"] = leaves
    # Stage 3 keeps no flag, only the streams that follow from it; the engine has what the configuration came to.
    found.setdefault("overlap_comm", bool(engine.zero_overlap_comm()) if found["zero_stage"] else None)
    return found
