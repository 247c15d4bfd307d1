"""What a rank of a real launch stands on: a process group, a device and a memory meter."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from bench.cell import Cell
from bench.measure.comm import CollectiveRecorder, nodes_of_ranks
from bench.measure.memory import MemoryMeter, memory_meter
from bench.worker.engine import zero_config
from bench.worker.failure import UnsupportedError
from bench.worker.model import DTYPES


class Rank(Protocol):
    """The rank that this process is, or emulates. ``backend`` is that of its collectives.

    ``apart``: whether its storages say what is host and what is device memory (bench.measure.places).
    """

    device: torch.device
    meter: MemoryMeter
    backend: str
    apart: bool

    def nodes(self) -> list[str]:
        """Return a name for the node of every rank, in rank order. All ranks must call it."""
        ...

    def counting(self, recorder: CollectiveRecorder) -> AbstractContextManager[Any]:
        """Let ``recorder`` see every collective of the ``with`` body, which is one step."""
        ...


@dataclass
class RealRank:
    """One of ``world_size`` processes that ``deepspeed`` or the warm agents have started."""

    device: torch.device
    meter: MemoryMeter
    backend: str
    apart: bool = False

    def nodes(self) -> list[str]:
        """As `bench.measure.comm.nodes_of_ranks`."""
        return nodes_of_ranks()

    def counting(self, recorder: CollectiveRecorder) -> AbstractContextManager[Any]:
        """The recorder is a dispatch mode."""
        return recorder


@contextmanager
def real_rank(cell: Cell, device_type: str) -> Iterator[RealRank]:
    """Join the process group of the launch, and count memory while the ``with`` body runs.

    Raises:
        UnsupportedError: DeepSpeed uses another device than ``device_type``, or it does not support the cell's dtype.
    """
    accelerator = get_accelerator()
    if accelerator.device_name() != device_type:
        raise UnsupportedError(
            f"the plan found {device_type}, DeepSpeed with torch {torch.__version__} uses {accelerator.device_name()}"
        )
    if DTYPES[cell.dtype] not in accelerator.supported_dtypes():
        raise UnsupportedError(
            f"DeepSpeed's {accelerator.device_name()} accelerator here does not support {cell.dtype}"
        )
    local_rank = int(os.environ["LOCAL_RANK"])
    backend = accelerator.communication_backend_name()
    device = torch.device(accelerator.device_name(local_rank))
    accelerator.set_device(local_rank)
    if zero_config(cell) is None:
        dist.init_process_group(backend)
    else:
        deepspeed.init_distributed(dist_backend=backend)
    with memory_meter(device) as meter:
        yield RealRank(device, meter, dist.get_backend())
