"""The outside baseline: torch DistributedDataParallel with DeepSpeed stage 0's precision recipe.

Low-precision parameters and gradients, gradients averaged in that precision, an fp32 master copy that AdamW
updates, clipping by the global norm, and in fp16 a dynamic loss scale: what DeepSpeed's ``FP16_UnfusedOptimizer``
does at stage 0, without DeepSpeed.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# DeepSpeed's fp16 defaults: initial_scale_power 16, loss_scale_window 1000.
_INITIAL_SCALE, _SCALE_WINDOW = 2.0**16, 1000


class DDPEngine:
    """The three calls of a DeepSpeed engine (forward, ``backward``, ``step``) over torch DDP."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Any,
        *,
        gradient_accumulation_steps: int,
        gradient_clipping: float,
    ) -> None:
        self.module = model
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.low_precision = self.params[0].dtype != torch.float32
        self.masters = [p.detach().clone().float() for p in self.params] if self.low_precision else self.params
        self.optimizer = make_optimizer(self.masters)
        self.gas = gradient_accumulation_steps
        self.clip = gradient_clipping
        self.scale = _INITIAL_SCALE if self.params[0].dtype == torch.float16 else 1.0
        self.micro_steps = 0
        self.good_steps = 0
        self.skipped_steps = 0

    def __call__(self, **batch: Any) -> Any:
        """Forward. Gradients are reduced only in the backward of the last micro-step, as DDP.no_sync does."""
        self.ddp.require_backward_grad_sync = (self.micro_steps + 1) % self.gas == 0
        return self.ddp(**batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of ``loss`` / accumulation steps."""
        (loss * (self.scale / self.gas)).backward()

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters if this was the last micro-step."""
        self.micro_steps += 1
        if self.micro_steps % self.gas:
            return
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = float(nn.utils.get_total_norm(grads)) / self.scale
        if self.scale != 1.0 and not math.isfinite(norm):
            self._skip()
            return
        factor = self.scale * max(1.0, (norm + 1e-6) / self.clip if self.clip else 1.0)
        for master, param in zip(self.masters, self.params, strict=True):
            if self.low_precision:
                master.grad = param.grad.float() if param.grad is not None else None
            if master.grad is not None:
                master.grad.div_(factor)
        self.optimizer.step()
        if self.low_precision:
            for master, param in zip(self.masters, self.params, strict=True):
                master.grad = None
                param.copy_(master)
        self._zero_grad()
        self.good_steps += 1
        if self.params[0].dtype == torch.float16 and self.good_steps % _SCALE_WINDOW == 0:
            self.scale *= 2

    def _skip(self) -> None:
        self.skipped_steps += 1
        self.good_steps = 0
        self.scale /= 2
        self._zero_grad()

    def _zero_grad(self) -> None:
        for param in self.params:
            param.grad = None
