"""A cell's training engine: DeepSpeed at stages 0 to 3, or the torch DDP baseline."""

from functools import partial
from typing import Any

import deepspeed
import torch
from torch import nn

from bench.cell import Cell
from bench.worker.ddp import DDPEngine
from bench.zero.ds_config import ds_config
from bench.zero.stages import STRATEGIES


def zero_config(cell: Cell) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration of the cell; ``None`` for the DDP baseline."""
    return None if STRATEGIES[cell.strategy].zero_stage is None else ds_config(cell)


def build_engine(cell: Cell, model: nn.Module) -> Any:
    """Wrap ``model`` so that ``engine(**batch)``, ``engine.backward(loss)`` and ``engine.step()`` train it."""
    # One update code for all: the for-loop AdamW, which every device and wrapper accepts.
    adamw = partial(torch.optim.AdamW, lr=cell.optimizer.lr, weight_decay=cell.optimizer.weight_decay, foreach=False)
    config = zero_config(cell)
    if config is None:
        return DDPEngine(
            model,
            adamw,
            gradient_accumulation_steps=cell.gradient_accumulation_steps,
            gradient_clipping=cell.optimizer.gradient_clipping,
        )
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model.parameters()), config=config)
    return engine


def effective_settings(engine: Any) -> dict[str, Any]:
    """Read back from the engine what it really runs; the record keeps it beside what was asked."""
    if isinstance(engine, DDPEngine):
        return {
            "engine": "torch DistributedDataParallel",
            "zero_stage": None,
            "optimizer_wrapper": "DDPEngine" if engine.low_precision else None,
            "optimizer": type(engine.optimizer).__name__,
            "world_size": torch.distributed.get_world_size(),
            "gradient_accumulation_steps": engine.gas,
            "model_dtype": str(engine.params[0].dtype).removeprefix("torch."),
        }
    inner = getattr(engine.optimizer, "optimizer", None)
    return {
        "engine": type(engine).__name__,
        "zero_stage": int(engine.zero_optimization_stage()),
        "optimizer_wrapper": type(engine.optimizer).__name__ if inner is not None else None,
        "optimizer": type(inner if inner is not None else engine.optimizer).__name__,
        "world_size": int(engine.dp_world_size),
        "train_batch_size": int(engine.train_batch_size()),
        "train_micro_batch_size_per_gpu": int(engine.train_micro_batch_size_per_gpu()),
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
        "model_dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
    }
