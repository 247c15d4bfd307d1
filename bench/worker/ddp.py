"""The outside baseline: torch DistributedDataParallel with DeepSpeed stage 0's precision recipe (torch_engine.py)."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.worker.torch_engine import TorchEngine

# torch 2.13 renames the keyword and warns of the old one.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
_SETTINGS: dict[str, Any] = {"gradient_as_bucket_view": True, _SYNC_BUFFERS: False}


class DDPEngine(TorchEngine):
    """The three calls of a DeepSpeed engine (forward, ``backward``, ``step``) over torch DDP."""

    def __init__(self, model: nn.Module, make_optimizer: Any, **settings: Any) -> None:
        """``settings`` are those of `TorchEngine`."""
        # The buffers of these models are constants; broadcasting them in every forward, DDP's default, would put a
        # collective into the baseline that no strategy of DeepSpeed has.
        self.ddp = DistributedDataParallel(model, **_SETTINGS)
        super().__init__(model, make_optimizer, **settings)

    def __call__(self, **batch: Any) -> Any:
        """Forward. Gradients are reduced only in the backward of the last micro-step, as DDP.no_sync does."""
        self.ddp.require_backward_grad_sync = (self.micro_steps + 1) % self.gas == 0
        return self.ddp(**batch)

    def backward(self, loss: torch.Tensor) -> None:
        """As the others; a frame of this file is how bench.hang knows that a backward may wait in DDP's reducer."""
        super().backward(loss)
