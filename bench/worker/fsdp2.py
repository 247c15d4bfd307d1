"""The outside baseline that shards: torch's ``fully_shard`` (FSDP2) with the same precision recipe (torch_engine.py).

One group per transformer block and one for the rest, torch's defaults for all else: a block's parameters are let go
after its forward and gathered again for its backward, those of the rest stay between the two, and gradients are
reduce-scattered at every micro-step (torch/distributed/fsdp/_fully_shard; Zhao et al., arXiv 2304.11277, is the paper
of FSDP1).

What differs from common use: there the parameters are fp32 shards, which ``MixedPrecisionPolicy`` casts before every
gather. Here they are low-precision shards beside fp32 master shards, as ZeRO-3 and ``ddp`` have them: 16 bytes per
parameter either way, the same bytes gathered, no cast in between; but gradients of several micro-steps add up in low
precision. What differs from ZeRO-3: the whole model exists on every rank before it is sharded.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from bench.worker.failure import UnsupportedError
from bench.worker.torch_engine import TorchEngine

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch below 2.6
    fully_shard = None  # type: ignore[assignment]


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks, by the classes that transformers names as not to be split."""
    names = getattr(model, "_no_split_modules", None) or ()
    return [module for module in model.modules() if type(module).__name__ in names]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, without padding; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FSDP2Engine(TorchEngine):
    """The three calls of a DeepSpeed engine (forward, ``backward``, ``step``) over a fully sharded model."""

    def __init__(self, model: nn.Module, make_optimizer: Any, **settings: Any) -> None:
        """``settings`` are those of `TorchEngine`.

        Raises:
            UnsupportedError: this release of torch has no FSDP2.
        """
        if fully_shard is None:
            raise UnsupportedError(f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard (2.6 has)")
        device = next(model.parameters()).device.type
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for block in blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.shards = list(model.parameters())  # while some are gathered, the model has others
        super().__init__(model, make_optimizer, **settings)

    def __call__(self, **batch: Any) -> Any:
        """Forward."""
        return self.module(**batch)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard, without padding."""
        return local(tensor)

    def over_ranks(self, squares: float) -> float:
        """All-reduce one number."""
        total = torch.tensor(squares, dtype=torch.float64, device=self.masters[0].device)
        dist.all_reduce(total)
        return float(total)

    def gathered(self) -> list[torch.Tensor]:
        """Return the memory that gathered parameters are copied to; resized to nothing while they are not needed.

        Read from attributes of torch 2.13; empty where a release has others.
        """
        modules: list[Any] = [module for module in self.module.modules() if hasattr(module, "_get_fsdp_state")]
        states = [module._get_fsdp_state() for module in modules]
        groups = [group for state in states for group in getattr(state, "_fsdp_param_groups", ())]
        params = [param for group in groups for param in getattr(group, "fsdp_params", ())]
        return [tensor for param in params for tensor in getattr(param, "all_gather_outputs", ())]

    def whole_gradients(self) -> list[torch.Tensor | None]:
        """Return the gradient of every parameter, put together. All ranks must call it, between backward and step."""
        grads = (param.grad for param in self.module.parameters())
        return [grad.full_tensor() if isinstance(grad, DTensor) else grad for grad in grads]
