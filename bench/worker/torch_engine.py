"""What both baselines without DeepSpeed share: DeepSpeed stage 0's precision recipe around a torch wrapper.

Low-precision parameters and gradients, gradients averaged in that precision, an fp32 master copy that AdamW
updates, clipping by the global norm, steps with a non-finite norm skipped, and in fp16 a dynamic loss scale: what
DeepSpeed's ``FP16_UnfusedOptimizer`` does at stage 0, without DeepSpeed. One thing is left out: that wrapper takes a
step with zero gradients when it is built, so its AdamW counts one step more (deepspeed 0.19.8).
"""

import math
from typing import Any

import torch
from torch import nn

# DeepSpeed's fp16 defaults: initial_scale_power 16, loss_scale_window 1000.
_INITIAL_SCALE, _SCALE_WINDOW = 2.0**16, 1000


class TorchEngine:
    """``backward`` and ``step`` of a DeepSpeed engine; a subclass wraps the model and has ``__call__``."""

    def __init__(
        self, model: nn.Module, make_optimizer: Any, *, gradient_accumulation_steps: int, gradient_clipping: float
    ) -> None:
        """``model`` is wrapped already, so that its parameters are those that the rank holds between steps."""
        self.module = model
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.low_precision = self.params[0].dtype != torch.float32
        held = [self.local(p).detach() for p in self.params]
        self.masters = [p.clone().float() for p in held] if self.low_precision else held
        self.optimizer = make_optimizer(self.masters)
        self.gas = gradient_accumulation_steps
        self.clip = gradient_clipping
        self.scale = _INITIAL_SCALE if self.params[0].dtype == torch.float16 else 1.0
        self.micro_steps = 0
        self.good_steps = 0
        self.skipped_steps = 0
        self.grad_norm: float | None = None

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what this rank holds of a parameter or of its gradient."""
        return tensor

    def over_ranks(self, squares: float) -> float:
        """Return the sum of the squares of the whole gradient's elements, given this rank's."""
        return squares

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of ``loss`` / accumulation steps."""
        (loss * (self.scale / self.gas)).backward()

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters if this was the last micro-step."""
        self.micro_steps += 1
        if self.micro_steps % self.gas:
            return
        grads = [None if p.grad is None else self.local(p.grad) for p in self.params]
        # In fp32: the square of a scaled fp16 gradient is soon above what fp16 can hold.
        squares = sum(float(grad.float().norm()) ** 2 for grad in grads if grad is not None)
        self.grad_norm = norm = math.sqrt(self.over_ranks(squares)) / self.scale
        if self.low_precision and not math.isfinite(norm):
            self._skip()
            return
        factor = self.scale * max(1.0, (norm + 1e-6) / self.clip if self.clip else 1.0)
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = None if grad is None else grad.float()
            if master.grad is not None:
                master.grad.div_(factor)
        del grads
        self.optimizer.step()
        for master, param in zip(self.masters, self.params, strict=True):
            master.grad = None
            if self.low_precision:
                self.local(param).copy_(master)
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
