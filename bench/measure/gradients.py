"""The gradients of a step, seen from two sides: the norm before clipping, and what the optimizer really applies.

Neither alone is enough. Clipping brings a gradient that is N times too large back to the right length, and the norm
that an engine reports says nothing of what it then does with the gradient.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


def squares(tensors: Iterable[torch.Tensor]) -> float:
    """Return the sum of the squares of all elements, added up in float64."""
    return math.fsum(float(tensor.detach().float().norm()) ** 2 for tensor in tensors)


def signature(gradient: torch.Tensor) -> tuple[float, float]:
    """Return the norm of a gradient, and its product with a fixed vector of the same size.

    A sign or an order that is wrong leaves the norm as it was, and hardly ever the product, which for a gradient that
    knows nothing of the vector is about as large as the norm.
    """
    flat = gradient.detach().flatten().float()
    # Golden-ratio steps through [-0.5, 0.5): no pattern that a gradient could share; the variance is 1/12.
    vector = torch.arange(flat.numel(), device=flat.device, dtype=torch.float32).mul_(0.6180339887).frac_().sub_(0.5)
    return float(flat.norm()), float(flat.dot(vector)) * math.sqrt(12)


@dataclass
class Applied:
    """What one rank's optimizer was handed in one step: sum of squares and number of gradient elements."""

    squares: float = 0.0
    num_elements: int = 0


class AppliedGradients:
    """While active, add up the gradients that ``optimizer`` sees when it steps.

    Over all ranks ``num_elements`` is the model's size when they are sharded, N times that when every rank has them
    all; so the norm of the whole gradient follows without trusting anybody's word on what is sharded.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.applied = Applied()

    def __enter__(self) -> "AppliedGradients":
        self._handle = self._optimizer.register_step_pre_hook(self._see)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._handle.remove()

    def _see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # Stage 3 steps once per sub-group: the calls of one optimizer step add up.
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.applied.squares += squares(grads)
        self.applied.num_elements += sum(grad.numel() for grad in grads)

    def take(self) -> Applied:
        """Return what was seen since the last call."""
        taken, self.applied = self.applied, Applied()
        return taken
