"""PyTorch's CUDA caching allocator, modelled: from what is allocated and freed, what would be reserved.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13) at its default settings, on one stream: sizes
are rounded up to 512 bytes; up to 1 MiB a block comes from a 2 MiB segment, up to 10 MiB from one of 20 MiB, above that
from one of its own size rounded up to 2 MiB; the smallest free block that fits is taken and, if enough of it is left
over, split; a freed block joins its free neighbours; a segment goes back to the device only when the device is full.
Pure Python, no torch.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

_MIN_BLOCK = 512
_SMALL_SIZE = 1 << 20  # the largest block of the small pool; also the smallest rest of a large one that is split off
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_MIN_OWN_SEGMENT = 10 << 20
_ROUND_LARGE = 2 << 20


@dataclass(eq=False, slots=True)
class _Block:
    address: int
    size: int
    pool: int
    free: bool = False
    previous: "_Block | None" = None
    next: "_Block | None" = None


def _up(size: int, to: int) -> int:
    return (size + to - 1) // to * to


def _join(block: _Block, after: _Block) -> None:
    """Make ``block`` as long as it and its next neighbour ``after`` together, which is then no block any more."""
    block.size += after.size
    block.next = after.next
    if after.next is not None:
        after.next.previous = block


class Allocator:
    """``change`` it; then read ``allocated_bytes``, ``reserved_bytes``, their peaks, and ``out_of_memory``.

    ``capacity_bytes`` is that of the device. Beyond it the allocator gives back what it has cached and tries again, as
    PyTorch's does (``num_alloc_retries``); where even that is not enough, ``out_of_memory`` keeps the size of the first
    segment that was refused, as PyTorch's message does, and the model goes on as if the device were larger.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = self.num_alloc_retries = 0
        self.out_of_memory: int | None = None
        self._taken: dict[int, _Block] = {}
        self._free: tuple[list[tuple[int, int]], ...] = ([], [])  # per pool, (size, address) in order
        self._by_address: dict[int, _Block] = {}
        self._next_segment = 0

    def change(self, key: int, size: int) -> None:
        """Storage ``key`` has ``size`` bytes from now on; 0 is its release. A resized one is copied: both are held."""
        before = self._taken.pop(key, None)
        if size:
            self._taken[key] = self._take(size)
        if before is not None:
            self._release(before)

    def _take(self, requested: int) -> _Block:
        size = max(_MIN_BLOCK, _up(requested, _MIN_BLOCK))
        pool = 0 if size <= _SMALL_SIZE else 1
        block = self._cached(size, pool) or self._segment(size, pool)
        rest = block.size - size
        if rest >= _MIN_BLOCK if pool == 0 else rest > _SMALL_SIZE:
            after = _Block(block.address + size, rest, pool, True, block, block.next)
            if block.next is not None:
                block.next.previous = after
            block.next, block.size = after, size
            self._add(after)
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def _cached(self, size: int, pool: int) -> _Block | None:
        free = self._free[pool]
        found = bisect_left(free, (size, 0))
        if found == len(free):
            return None
        _, address = free.pop(found)
        return self._by_address.pop(address)

    def _segment(self, size: int, pool: int) -> _Block:
        if size <= _SMALL_SIZE:
            length = _SMALL_SEGMENT
        elif size < _MIN_OWN_SEGMENT:
            length = _LARGE_SEGMENT
        else:
            length = _up(size, _ROUND_LARGE)
        if self.reserved_bytes + length > self.capacity_bytes:
            self.num_alloc_retries += 1
            self.empty_cache()
            if self.reserved_bytes + length > self.capacity_bytes and self.out_of_memory is None:
                self.out_of_memory = length
        self.reserved_bytes += length
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        address = self._next_segment
        self._next_segment += length + _ROUND_LARGE  # neighbours of two segments never join
        return _Block(address, length, pool)

    def empty_cache(self) -> None:
        """Give segments of which nothing is taken back to the device."""
        for pool, free in enumerate(self._free):
            kept = []
            for size, address in free:
                block = self._by_address[address]
                if block.previous is None and block.next is None:
                    self.reserved_bytes -= size
                    del self._by_address[address]
                else:
                    kept.append((size, address))
            self._free[pool][:] = kept

    def _add(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.pool], (block.size, block.address))
        self._by_address[block.address] = block

    def _remove(self, block: _Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.address))]
        del self._by_address[block.address]

    def _release(self, block: _Block) -> None:
        self.allocated_bytes -= block.size
        before, after = block.previous, block.next
        if after is not None and after.free:
            self._remove(after)
            _join(block, after)
        if before is not None and before.free:
            self._remove(before)
            _join(before, block)
            block = before
        self._add(block)

    def reset_peak(self) -> None:
        """Start new peaks from what is allocated and reserved now."""
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def summary(self) -> dict[str, int | None]:
        """Return what a record keeps, as ``bench.record.AllocatorModel``."""
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "num_alloc_retries": self.num_alloc_retries,
            "out_of_memory_bytes": self.out_of_memory,
        }
