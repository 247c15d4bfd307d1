"""Be rank r of N: what a real rank gets from its launch, an emulated one gets here."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.cell import Cell
from bench.cell import EmulatedRank as Target
from bench.emulate import interventions
from bench.emulate.allocator import Allocator
from bench.emulate.emulator import Emulator
from bench.emulate.places import DEVICE, HOST, host_and_device
from bench.emulate.shapes import NotEmulatedError
from bench.emulate.trace import Trace
from bench.measure.comm import CollectiveRecorder
from bench.measure.memory import StorageMeter

# What carries the collectives where DeepSpeed's accelerator answers like this.
BACKENDS = {"cpu": "gloo", "cuda-like": "nccl"}


_NOT_EMULATED = {
    "ddp": "torch DDP's reducer is C++ that reads and writes memory outside the dispatcher",
    "fsdp2": "FSDP2 makes its process groups through a device mesh and resizes storages, which is not emulated yet",
}


class EmulatedRank:
    """The rank that this process emulates, alone."""

    def __init__(self, cell: Cell, target: Target, emulator: Emulator, meter: StorageMeter) -> None:
        self.apart = target.apart
        self.device = DEVICE if self.apart else HOST
        self.meter = meter
        self.backend = BACKENDS[target.accelerator_path]
        self.allocator = Allocator(target.gpu_memory_bytes)
        self._world_size, self._gpus_per_node = cell.world_size, target.gpus_per_node
        self._emulator = emulator
        self._trace = Trace()

    def nodes(self) -> list[str]:
        """Ranks fill one node after the other, as launchers place them."""
        return [str(rank // self._gpus_per_node) for rank in range(self._world_size)]

    @contextmanager
    def counting(self, recorder: CollectiveRecorder) -> Iterator[None]:
        """The emulator tells the recorder; the trace of the last step counted is kept."""
        self._trace = Trace()
        self.allocator.reset_peak()
        with self._emulator.observed_by(recorder), self._trace.following(self._emulator, recorder):
            yield

    def found(self, trace: Path) -> dict[str, Any]:
        """Write the trace of the last counted step; return what only an emulated rank has to say."""
        self._trace.write(trace)
        guesses = [
            {"reader": reader, "origin": origin, "value": self._emulator.guessed[reader, origin], "count": count}
            for (reader, origin), count in self._emulator.guesses.items()
        ]
        return {"allocator": self.allocator.summary(), "guesses": guesses, "flops_per_step": self._trace.flops()}


@contextmanager
def emulated_rank(cell: Cell) -> Iterator[EmulatedRank]:
    """Emulate the cell's rank while the ``with`` body runs.

    Raises:
        NotEmulatedError: the cell cannot be emulated.
    """
    target = cell.emulation
    assert target is not None
    if reason := _NOT_EMULATED.get(cell.strategy):
        raise NotEmulatedError(reason)
    apart = target.apart
    emulator, meter = Emulator(BACKENDS[target.accelerator_path], apart=apart), StorageMeter()
    rank = EmulatedRank(cell, target, emulator, meter)
    meter.allocator = rank.allocator.change
    interventions.choose_accelerator(target.accelerator_path, rank.allocator)
    interventions.join_group(target.rank, cell.world_size)
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if apart:
            # On the other path it fails, as it does in a real run on CPU.
            stack.enter_context(interventions.no_record_stream())
            stack.enter_context(host_and_device())
        stack.enter_context(interventions.reads_seen(emulator.saw))
        stack.enter_context(interventions.agreement_with_rank_0())
        stack.enter_context(interventions.views_undispatched())
        stack.enter_context(interventions.content_unprinted())
        stack.enter_context(emulator)
        stack.enter_context(emulator.observed_by(meter))
        yield rank
