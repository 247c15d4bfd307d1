"""Where a storage lies on a machine with GPUs: on the device, or on its host, pinned or not.

On a CPU all memory is one, so this is a note that the emulator (bench.emulate.places) leaves on a storage; without a
note it is the device's.
"""

import torch

_NOTE = "_zerostage_host"


def note_host(tensor: torch.Tensor, *, pinned: bool = False) -> None:
    """Note that the storage of ``tensor`` is host memory."""
    setattr(tensor.untyped_storage(), _NOTE, "pinned" if pinned else "pageable")


def host_kind(storage: torch.UntypedStorage) -> str | None:
    """Return ``pinned`` or ``pageable`` for host memory, ``None`` for the device's."""
    return getattr(storage, _NOTE, None)


def on_host(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is in host memory."""
    try:
        return host_kind(tensor.untyped_storage()) is not None
    except NotImplementedError:  # sparse tensors have no storage
        return False


def moved_bytes(target: torch.Tensor, source: torch.Tensor, *, to_host: bool, non_blocking: bool) -> int:
    """Return the bytes that ``target.copy_(source)`` moves between host and device.

    Where the dtypes differ, CUDA converts on the device if the copy does not block and on the host if it does, and what
    is moved has the dtype of that moment (PyTorch 2.13, aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
    """
    converted_first = non_blocking == to_host
    width = (target if converted_first else source).element_size()
    return source.numel() * width
