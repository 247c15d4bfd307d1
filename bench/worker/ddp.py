"""The outside baseline: torch DistributedDataParallel with DeepSpeed stage 0's precision recipe.

Low-precision parameters and gradients, gradients averaged in that precision, an fp32 master copy that AdamW
updates, clipping by the global norm, steps with a non-finite norm skipped, and in fp16 a dynamic loss scale: what
DeepSpeed's ``FP16_UnfusedOptimizer`` does at stage 0, without DeepSpeed. One thing is left out: that wrapper takes a
step with zero gradients when it is built, so its AdamW counts one step more (deepspeed 0.19.8).
"""

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# torch 2.13 renames the keyword and warns of the old one.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"
_SETTINGS: dict[str, Any] = {"gradient_as_bucket_view": True, _SYNC_BUFFERS: False}
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
        # The buffers of these models are constants; broadcasting them in every forward, DDP's default, would put a
        # collective into the baseline that no strategy of DeepSpeed has.
        self.ddp = DistributedDataParallel(model, **_SETTINGS)
        self.low_precision = self.params[0].dtype != torch.float32
        self.masters = [p.detach().clone().float() for p in self.params] if self.low_precision else self.params
        self.optimizer = make_optimizer(self.masters)
        self.gas = gradient_accumulation_steps
        self.clip = gradient_clipping
        self.scale = _INITIAL_SCALE if self.params[0].dtype == torch.float16 else 1.0
        self.micro_steps = 0
        self.good_steps = 0
        self.skipped_steps = 0
        self.grad_norm: float | None = None

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
        # In fp32: the square of a scaled fp16 gradient is soon above what fp16 can hold.
        squares = [float(p.grad.float().norm()) ** 2 for p in self.params if p.grad is not None]
        self.grad_norm = norm = math.sqrt(sum(squares)) / self.scale
        if self.low_precision and not math.isfinite(norm):
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

    def get_global_grad_norm(self) -> float | None:
        """Return the norm of the last step's gradient before clipping, as a DeepSpeed engine does."""
        return self.grad_norm

    def _skip(self) -> None:
        self.skipped_steps += 1
        self.good_steps = 0
        self.scale = max(self.scale / 2, 1.0)
        self._zero_grad()

    def _zero_grad(self) -> None:
        for param in self.params:
            param.grad = None
