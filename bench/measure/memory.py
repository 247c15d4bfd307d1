"""Peak memory of one rank: exact bytes of live tensor storages on CPU, the caching allocator's on CUDA."""

import resource
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from bench.measure.places import host_kind
from bench.measure.storage_log import Birth, StorageLog

# gloo's threads let go of what a collective was handed only when they get Python's lock. Without a pause for it, the
# next tensors are born beside those, in one run and not in the next.
_LET_GO_S = 0.001
# What can carry content from host to device memory or back.
_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default, _aten.cat.default, _aten.cat.out)
COPIES = frozenset(map(id, _COPIES))  # by id: an operator's own hash is slow


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


def nowhere() -> tuple[str, str]:
    """Return the phase and module of a storage that is born while nobody says where."""
    return "", ""


class StorageMeter(TorchDispatchMode):
    """Follow every tensor storage that an operator returns, from birth until it is freed.

    Storages are counted once however many tensors view them, at their full size. What a kernel allocates
    and frees inside itself is not seen, nor are sparse tensors and memory wrapped by ``torch.frombuffer``. A storage
    that Python code resizes is: FSDP2 does so with gathered parameters, and no operator tells. Active from before the
    model exists until the counting pass ends, so nothing that lives then was born unseen.

    ``place`` says where the program is, as ``(phase, module)``; every birth keeps it. ``watch`` is called with
    the name and the arguments of each ``c10d`` operator, and of each that copies, before it runs. Between
    ``begin_log`` and ``end_log`` every birth, resize and release is logged. ``allocator`` is told every one, as
    ``(storage, bytes)``; 0 is a release. What is noted to be host memory (bench.measure.places) is counted apart.
    """

    kind = "live tensor storages"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: Callable[[], tuple[str, str]] = nowhere
        self.watch: Callable[[str, tuple[Any, ...]], None] | None = None
        self._births: dict[int, Birth] = {}
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.allocator: Callable[[int, int], None] | None = None
        self._log: StorageLog | None = None
        self._handed = False
        self._born = 0
        self._live = 0
        self._peak = 0
        self._host_live = 0
        self._host_peak = 0

    def __enter__(self) -> "StorageMeter":
        self._resize = resize = torch.UntypedStorage.resize_

        def seen(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._sizes:
                self._see(storage)
            return result

        torch.UntypedStorage.resize_ = seen  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> Any:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        return super().__exit__(*exc)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        collective = func.namespace == "c10d"
        if self._handed and not collective:
            time.sleep(_LET_GO_S)
        self._handed = collective
        self.before(func, args, kwargs)
        result = func(*args, **kwargs)
        self.after(func, result)
        return result

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See an operator that is about to run; the emulator calls this instead of being below this mode."""
        if self.watch is not None and (func.namespace == "c10d" or id(func) in COPIES):
            self.watch(func._schema.name.split("::")[1], args)

    def after(self, func: Any, result: Any) -> None:
        """See what an operator returned."""
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided:
                # A DTensor's own storage is as large as the whole tensor and has no memory; its shard's has.
                if is_traceable_wrapper_subclass(leaf):
                    self.after(func, [getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
                else:
                    self._see(leaf.untyped_storage(), func._schema.name)

    def _see(self, storage: torch.UntypedStorage, op: str = "") -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known == size:
            return
        if known is None:
            self._refs[key] = weakref.ref(storage, partial(self._free, key))
            self._births[key] = Birth(self._born, *self.place(), op, host_kind(storage))
            self._born += 1
        self._sizes[key] = size
        if self._births[key].host is not None:
            self._host_live += size - (known or 0)
            self._host_peak = max(self._host_peak, self._host_live)
        else:
            self._live += size - (known or 0)
            self._peak = max(self._peak, self._live)
            if self.allocator is not None:
                self.allocator(key, size)
        if self._log is not None:
            self._log.change(self._births[key], size)

    def _free(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        size, birth = self._sizes.pop(key), self._births.pop(key)
        del self._refs[key]
        if birth.host is not None:
            self._host_live -= size
        else:
            self._live -= size
            if self.allocator is not None:
                self.allocator(key, 0)
        if self._log is not None:
            self._log.change(birth, 0)

    def begin_log(self) -> StorageLog:
        """Log every change from now on; the log starts from what is live now."""
        self._log = StorageLog(self.live())
        return self._log

    def end_log(self) -> None:
        """Log no more."""
        self._log = None

    def birth(self, tensor: torch.Tensor) -> Birth | None:
        """Return where the storage of ``tensor`` was born; ``None`` for one that this meter does not count."""
        try:
            return self._births.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse tensors have no storage
            return None

    def live(self) -> dict[Birth, int]:
        """Return every storage that is live now, with its bytes."""
        return {self._births[key]: size for key, size in self._sizes.items()}

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
        self._peak, self._host_peak = self._live, self._host_live


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
