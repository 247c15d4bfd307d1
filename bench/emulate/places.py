"""Host and device of an emulated GPU rank, on a CPU: the device is called ``cpu:0``, its host ``cpu``.

PyTorch takes both for the same processor, so every operator works on either; a storage of the host has a note
(bench.measure.places). DeepSpeed, which asks its accelerator for names of devices and the program for the ``device`` of
tensors, then tells them apart as it would ``cuda:0`` and ``cpu``, and a copy from one to the other is a copy.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from bench.emulate.hollow import is_hollow
from bench.measure.places import note_host, on_host

DEVICE = torch.device("cpu", 0)
HOST = torch.device("cpu")
_pinning = False


class DeviceName(str):
    """The kind of the device, ``cpu``, which also names the host: told apart from that by its type."""

    __slots__ = ()


def is_host(device: Any) -> bool | None:
    """Whether ``device``, as programs name devices, is the host; ``None`` for what is no device of either kind."""
    if isinstance(device, DeviceName):
        return False
    if isinstance(device, int) and not isinstance(device, bool):
        return False
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError):
        return None
    return None if named.type != "cpu" else named.index is None


def place(result: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    """Note what of ``result`` is host memory: as ``kwargs`` say, else where all of ``tensors`` are; else the host."""
    named = is_host(kwargs["device"]) if kwargs.get("device") is not None else None
    if not (all(map(on_host, tensors)) if named is None else named):
        return
    for leaf in result if isinstance(result, list | tuple) else (result,):
        if isinstance(leaf, torch.Tensor):
            note_host(leaf, pinned=_pinning)


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor like ``tensor`` in pinned host memory."""
    global _pinning
    _pinning = True
    try:
        return torch.empty_like(tensor, device=HOST)
    finally:
        _pinning = False


class _Call(NamedTuple):
    """What a call of ``Tensor.to`` asks for; ``None``: nothing."""

    device: Any = None
    dtype: torch.dtype | None = None
    non_blocking: bool = False
    copy: bool = False


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Return what ``tensor.to(*args, **kwargs)`` asks for, in any of its three forms."""
    if "other" in kwargs:
        args = (kwargs.pop("other"), *args)
    if args and isinstance(args[0], torch.Tensor):
        return _Call(args[0].device, args[0].dtype, *args[1:])._replace(**kwargs)
    if args and isinstance(args[0], torch.dtype):
        return _Call(None, *args)._replace(**kwargs)
    return _Call(*args)._replace(**kwargs)


@contextlib.contextmanager
def host_and_device() -> Iterator[None]:
    """Let ``tensor.device``, ``tensor.to`` and ``tensor.cpu`` tell host from device."""
    device: Any = torch.Tensor.device
    to = torch.Tensor.to

    def placed_device(self: torch.Tensor) -> torch.device:
        real: torch.device = device.__get__(self)
        return DEVICE if real.type == "cpu" and not on_host(self) else real

    def placed_to(self: torch.Tensor, *args: Any, memory_format: Any = None, **kwargs: Any) -> torch.Tensor:
        call = _asked(args, dict(kwargs))
        host = None if call.device is None else is_host(call.device)
        if host is None or self.is_meta or on_host(self) == host:
            if host is not None:  # where it is already
                call = call._replace(device=None)
            format = {} if memory_format is None else {"memory_format": memory_format}
            if call.copy and call.device is None and not self.is_meta:  # PyTorch would name the host
                there = HOST if on_host(self) else DEVICE
                copied: torch.Tensor = torch.ops.aten._to_copy(
                    self, dtype=call.dtype or self.dtype, device=there, **format
                )
                return copied
            return to(self, call.device, call.dtype, call.non_blocking, call.copy, **format)
        # Written out: PyTorch sees one processor, and would not always copy.
        place, dtype = HOST if host else DEVICE, call.dtype or self.dtype
        if is_hollow(self):
            return torch.empty_like(self, dtype=dtype, device=place).copy_(self, non_blocking=call.non_blocking)
        moved: torch.Tensor = torch.ops.aten._to_copy(self, dtype=dtype, device=place, non_blocking=call.non_blocking)
        return moved

    def placed_cpu(self: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
        return placed_to(self, HOST)

    torch.Tensor.device = property(placed_device)  # type: ignore[assignment]
    torch.Tensor.to, torch.Tensor.cpu = placed_to, placed_cpu  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        del torch.Tensor.device, torch.Tensor.to, torch.Tensor.cpu  # those of the base class are there again
