"""Hollow tensors: plain CPU tensors, to Python and C++ alike, whose storage has an address and a size and no memory.

Everything that does not read or write their content works as on any tensor: views, autograd's graph, ``.data``,
hooks, ``nn.Module.to``. What does touch it ends the process (SIGSEGV): never a wrong number.
"""

from collections.abc import Sequence

import torch

# No process has memory from here to 2^55: above what Linux hands out on x86-64 (2^47; 2^56 only to those who ask for
# such an address) and on aarch64 (2^48, 2^52 on request), below the byte that aarch64 ignores.
_FIRST, _LAST = 1 << 53, 1 << 55
_GAP = 512  # so that the end of one storage is never the address of another
_CPU = torch.device("cpu")


class AddressSpace:
    """Hands out addresses, each once: they tell storages apart, and 2^54 bytes are enough for any run."""

    def __init__(self) -> None:
        self._next = _FIRST

    def tensor(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, num_bytes: int) -> torch.Tensor:
        """Return a hollow tensor over a new storage of ``num_bytes``."""
        address = self._next
        self._next = address + (num_bytes + 2 * _GAP - 1) // _GAP * _GAP
        if self._next > _LAST:
            raise MemoryError("emulation has used up its address space")
        storage = torch._C._construct_storage_from_data_pointer(address, _CPU, num_bytes)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, stride)


def is_hollow(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` has no memory."""
    return tensor.data_ptr() >= _FIRST
