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
from deepspeed.runtime.zero import utils as zero_utils
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.emulate.accelerator import PATHS
from bench.emulate.allocator import Allocator
from bench.emulate.hollow import is_hollow


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


def choose_accelerator(path: str, allocator: Allocator) -> None:
    """Have DeepSpeed ask the target's accelerator; by its public interface."""
    set_accelerator(PATHS[path](allocator))


class _AsRank0:
    """``deepspeed.comm``, to a module that must take this rank for rank 0."""

    def __getattr__(self, name: str) -> Any:
        return getattr(deepspeed.comm, name)

    def get_rank(self, group: Any = None) -> int:
        return 0


@contextlib.contextmanager
def agreement_with_rank_0() -> Iterator[None]:
    """Let stage 3 find the lists that it compares across ranks equal: rank 0, which would send its own, is not there.

    Its two broadcasts are issued all the same.
    """
    real = zero_utils.dist
    zero_utils.dist = _AsRank0()
    try:
        yield
    finally:
        zero_utils.dist = real


@contextlib.contextmanager
def views_undispatched() -> Iterator[None]:
    """Let ``tensor.narrow(...)`` and ``tensor[start:stop]`` pass by the dispatch modes, which have nothing to do there.

    For speed alone: stage 3 cuts every gradient into a piece for each rank, a million views per step for 70B parameters
    on 1024 ranks, and each costs three times as much through a dispatch mode.
    """
    narrow, getitem = torch.Tensor.narrow, torch.Tensor.__getitem__

    def undispatched_narrow(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
        guard = torch._C._DisableTorchDispatch()
        try:
            return narrow(self, dim, start, length)
        finally:
            del guard

    def undispatched_slice(self: torch.Tensor, index: Any) -> torch.Tensor:
        if type(index) is not slice:
            return getitem(self, index)
        guard = torch._C._DisableTorchDispatch()
        try:
            return getitem(self, index)
        finally:
            del guard

    torch.Tensor.narrow = undispatched_narrow  # type: ignore[assignment,method-assign]
    torch.Tensor.__getitem__ = undispatched_slice  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.narrow, torch.Tensor.__getitem__ = narrow, getitem  # type: ignore[method-assign]


@contextlib.contextmanager
def reads_seen(saw: Callable[[torch.Tensor, str], None]) -> Iterator[None]:
    """Tell ``saw`` of every tensor whose content is read by ``tolist`` or ``numpy``, which pass no dispatcher.

    Of a small tensor they give what it holds, which may be a guess; a large one has nothing that could be read.
    """
    tolist, numpy = torch.Tensor.tolist, torch.Tensor.numpy

    def seen_tolist(self: torch.Tensor) -> Any:
        saw(self, "tolist")
        return tolist(self)

    def seen_numpy(self: torch.Tensor, **options: Any) -> Any:
        saw(self, "numpy")
        return numpy(self, **options)

    torch.Tensor.tolist, torch.Tensor.numpy = seen_tolist, seen_numpy  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.tolist, torch.Tensor.numpy = tolist, numpy  # type: ignore[method-assign]


@contextlib.contextmanager
def content_unprinted() -> Iterator[None]:
    """Let a tensor without memory be printed without its content.

    Stage 3 puts the optimizer's parameters into words when it is built, printed or not (0.19.8, runtime/zero/stage3.py,
    ``__init__``): empty ones, if they were made under ``zero.Init``, but peft makes its adapters whole.
    """
    real: Any = torch._tensor_str._str

    def shown(self: torch.Tensor, **options: Any) -> str:
        if is_hollow(self):
            return f"tensor(without content, size={tuple(self.shape)}, dtype={self.dtype})"
        return str(real(self, **options))

    torch._tensor_str._str = shown
    try:
        yield
    finally:
        torch._tensor_str._str = real


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
