"""What DeepSpeed is told about the device: the target GPU's answers, never those of the host that emulates it.

DeepSpeed asks its accelerator how to behave: whether work is asynchronous, whether memory must be guarded, how much of
it there is. ``cuda-like`` answers as DeepSpeed's CUDA accelerator does, ``cpu`` as its CPU accelerator does;
docs/emulation.md lists where the two differ. Tensors are on ``cpu`` either way, and memory is that of the target.
"""

from types import TracebackType
from typing import Any

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from bench.emulate.allocator import Allocator
from bench.emulate.places import DEVICE, DeviceName, pinned_like
from bench.measure.places import host_kind, on_host


class TargetAccelerator(CPU_Accelerator):  # type: ignore[misc]
    """DeepSpeed's CPU path on a device whose memory is in the hands of ``allocator``."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self._allocator = allocator

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._allocator.allocated_bytes

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._allocator.peak_allocated_bytes

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._allocator.reserved_bytes

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return self._allocator.peak_reserved_bytes

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self._allocator.allocated_bytes,
            "allocated_bytes.all.peak": self._allocator.peak_allocated_bytes,
            "num_alloc_retries": self._allocator.num_alloc_retries,
        }

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        pass  # the peaks are those that the record reports

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def empty_cache(self) -> None:
        self._allocator.empty_cache()

    def total_memory(self, device_index: int | None = None) -> int:
        return self._allocator.capacity_bytes

    def available_memory(self, device_index: int | None = None) -> int:
        return max(0, self._allocator.capacity_bytes - self._allocator.reserved_bytes)

    def create_op_builder(self, op_name: str) -> Any:
        # A C++ collective over shared memory, which would wait for ranks that do not exist.
        return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.half, torch.bfloat16]

    def is_fp16_supported(self) -> bool:
        return True


class _Stream:
    """A stream on which all is done at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    wait_event = wait_stream

    def synchronize(self) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    wait = record

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class CudaLikeAccelerator(TargetAccelerator):
    """The CUDA path: asynchronous, with streams, and memory that must be guarded."""

    def is_synchronized_device(self) -> bool:
        return False

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def device_name(self, device_index: int | None = None) -> str:
        return DeviceName("cpu") if device_index is None else str(DEVICE)

    def current_device_name(self) -> str:
        return str(DEVICE)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return not on_host(tensor)

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        return pinned_like(tensor).copy_(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return host_kind(tensor.untyped_storage()) == "pinned"

    def unpin_memory(self, tensor: torch.Tensor) -> bool:
        return False

    Stream = _Stream
    Event = _Event

    def stream(self, stream: Any) -> Any:
        return stream or _Stream()

    def current_stream(self, device_index: int | None = None) -> Any:
        return _Stream()

    default_stream = current_stream


PATHS = {"cpu": TargetAccelerator, "cuda-like": CudaLikeAccelerator}
