"""Stub until the resolver lands."""

from dataclasses import dataclass
from typing import Any

from bench.configs.read import ConfigFile


@dataclass(frozen=True)
class Context:
    """Where auto comes from."""

    hidden_size: int | None
    world_size: int
    dtype: str | None
    train_micro_batch_size_per_gpu: int | None
    gradient_accumulation_steps: int | None
    train_batch_size: int | None
    lr: float
    weight_decay: float
    gradient_clipping: float
    deepspeed: str


@dataclass(frozen=True)
class Resolved:
    """Settled."""

    strategy: str
    zero_optimization: dict[str, Any]
    deepspeed: dict[str, Any]
    settings: dict[str, Any]
    optimizer: dict[str, Any]
    notes: tuple[str, ...]
    impossible: str | None


def resolve(config: ConfigFile, context: Context) -> Resolved:
    """Resolve."""
    raise NotImplementedError(config, context)
