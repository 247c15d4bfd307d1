"""Peak memory of one rank: exact bytes of live tensor storages on CPU, the caching allocator's on CUDA."""

import resource
import sys
import weakref
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(Protocol):
    """A context manager; all figures are bytes on this rank's device since it was entered."""

    kind: str

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> Any: ...
    def allocated_bytes(self) -> int:
        """Live now."""
        ...

    def peak_allocated_bytes(self) -> int:
        """Highest since the last reset."""
        ...

    def peak_reserved_bytes(self) -> int | None:
        """Highest the allocator held from the device; ``None`` where there is no caching allocator."""
        ...

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        ...


class StorageMeter(TorchDispatchMode):
    """Follow every tensor storage that an operator returns, from birth until it is freed.

    Storages are counted once however many tensors view them, at their full size. What a kernel allocates
    and frees inside itself is not seen, nor are sparse tensors, memory wrapped by ``torch.frombuffer``, and a
    storage resized behind its tensors' back. Active from before the model exists until the counting pass ends,
    so nothing that lives then was born unseen.
    """

    kind = "live tensor storages"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live = 0
        self._peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided:
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known == size:
            return
        if known is None:
            self._refs[key] = weakref.ref(storage, partial(self._free, key))
        self._sizes[key] = size
        self._live += size - (known or 0)
        self._peak = max(self._peak, self._live)

    def _free(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        self._live -= self._sizes.pop(key)
        del self._refs[key]

    def allocated_bytes(self) -> int:
        """Live now."""
        return self._live

    def peak_allocated_bytes(self) -> int:
        """Highest since the last reset."""
        return self._peak

    def peak_reserved_bytes(self) -> None:
        """There is no caching allocator on CPU."""
        return

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        self._peak = self._live


class CudaMeter:
    """PyTorch's CUDA caching allocator, which counts by itself at no cost."""

    kind = "CUDA caching allocator"

    def __enter__(self) -> "CudaMeter":
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *exc: Any) -> None:
        pass

    def allocated_bytes(self) -> int:
        """Live now."""
        return torch.cuda.memory_allocated()

    def peak_allocated_bytes(self) -> int:
        """Highest since the last reset."""
        return torch.cuda.max_memory_allocated()

    def peak_reserved_bytes(self) -> int:
        """Highest the allocator held from the device."""
        return torch.cuda.max_memory_reserved()

    def reset_peak(self) -> None:
        """Start a new peak from what is live now."""
        torch.cuda.reset_peak_memory_stats()


def memory_meter(device: torch.device) -> MemoryMeter:
    """Return the meter for ``device``."""
    return CudaMeter() if device.type == "cuda" else StorageMeter()


def host_peak_rss_bytes() -> int:
    """Highest resident set of this process since it started: Python and libraries included, shared pages too."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
