"""A cell's training engine: DeepSpeed at stages 0 to 3, or a baseline of torch alone, DDP or FSDP2."""

import math
from functools import partial
from typing import Any

import deepspeed
import torch
from torch import nn

from bench.cell import Cell
from bench.measure.gradients import signature, squares
from bench.worker.ddp import DDPEngine
from bench.worker.fsdp2 import FSDP2Engine
from bench.worker.leaves import set_leaf_modules
from bench.zero.ds_config import ds_config
from bench.zero.stages import STRATEGIES


def zero_config(cell: Cell) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration of the cell; ``None`` where torch runs it without DeepSpeed."""
    return None if STRATEGIES[cell.strategy].zero_stage is None else ds_config(cell)


def build_engine(cell: Cell, model: nn.Module) -> Any:
    """Wrap ``model`` so that ``engine(**batch)``, ``engine.backward(loss)`` and ``engine.step()`` train it."""
    # One update code for all strategies; the for-loop AdamW, which every device and wrapper accepts, unless asked.
    adamw = partial(
        torch.optim.AdamW,
        lr=cell.optimizer.lr,
        weight_decay=cell.optimizer.weight_decay,
        foreach=cell.optimizer.implementation == "foreach",
        fused=cell.optimizer.implementation == "fused",
    )
    config = zero_config(cell)
    if config is None:
        return (FSDP2Engine if cell.strategy == "fsdp2" else DDPEngine)(
            model,
            adamw,
            gradient_accumulation_steps=cell.gradient_accumulation_steps,
            gradient_clipping=cell.optimizer.gradient_clipping,
        )
    trained = [param for param in model.parameters() if param.requires_grad]
    if config["zero_optimization"]["stage"] == 3:
        set_leaf_modules(model)
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(trained), config=config)
    return engine


def inner_optimizer(engine: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer that updates the master weights, without DeepSpeed's wrappers."""
    optimizer = engine.optimizer
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer  # type: ignore[no-any-return]


def optimizer_steps(engine: Any) -> int:
    """Return how many steps the inner optimizer's own state has counted, 0 before its first."""
    return max((int(state["step"]) for state in inner_optimizer(engine).state.values() if "step" in state), default=0)


def reported_grad_norm(engine: Any) -> float | None:
    """Return the norm of the last step's global gradient before clipping, as the engine itself reports it."""
    norm = engine.get_global_grad_norm()
    return None if norm is None else float(norm)


def replicated_grad_norm(engine: Any) -> float:
    """Return the norm of the gradients on the parameters, which before a step of stage 0 are the global ones."""
    return math.sqrt(squares(p.grad for p in engine.module.parameters() if p.grad is not None))


def gradient_signatures(engine: Any) -> list[tuple[float, float]] | None:
    """Return norm and product (bench.measure.gradients) of each trained parameter's gradient, before the step.

    All ranks must call it: where gradients are sharded, each is put together. ``None`` where this release cannot.
    """
    if isinstance(engine, DDPEngine | FSDP2Engine):
        grads = (
            engine.whole_gradients()
            if isinstance(engine, FSDP2Engine)
            else [param.grad for param in engine.module.parameters() if param.requires_grad]
        )
        return [(0.0, 0.0) if grad is None else signature(grad / engine.scale) for grad in grads]
    from deepspeed.utils import safe_get_full_grad

    # With round_robin_gradients, safe_get_full_grad of stages 1 and 2 looks in the wrong place and fails (0.19.8).
    if getattr(engine.optimizer, "round_robin_gradients", False):
        return None
    # BF16_Optimizer adds up elsewhere and leaves a micro-batch's own gradient on the parameter.
    replicated = engine.zero_optimization_stage() == 0 and type(engine.optimizer).__name__ != "BF16_Optimizer"
    found = []
    for param in engine.module.parameters():
        if not param.requires_grad:
            continue
        if param.grad is not None and not replicated:
            return None
        gradient = safe_get_full_grad(param)
        if gradient is None:
            return None
        found.append(signature(gradient))
    return found
