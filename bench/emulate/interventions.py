"""Everything that emulation changes inside torch and DeepSpeed, each with its reason. Nothing else does.

tests/integration/test_interventions.py names what each of them assumes, so that a release which changes it says so.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator, set_accelerator
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.emulate.accelerator import PATHS


def join_group(rank: int, world_size: int) -> None:
    """Be rank ``rank`` of ``world_size`` without the others: torch's own ``fake`` backend.

    Its collectives never run: bench.emulate.emulator answers them. DeepSpeed finds the group made, and takes it.
    """
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    deepspeed.init_distributed(dist_backend=get_accelerator().communication_backend_name())


def choose_accelerator(path: str, capacity_bytes: int, allocated: Callable[[], int]) -> None:
    """Have DeepSpeed ask the target's accelerator; by its public interface."""
    set_accelerator(PATHS[path](capacity_bytes, allocated))


@contextlib.contextmanager
def no_record_stream() -> Iterator[None]:
    """Let ``tensor.record_stream(stream)`` do nothing: it only accepts a stream of a device that torch was built for.

    On a GPU it keeps memory from being reused until another stream is done with it; here all is done at once.
    """
    real = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        pass

    torch.Tensor.record_stream = record_stream  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.record_stream = real  # type: ignore[method-assign]
