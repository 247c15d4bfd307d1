"""What happened to the storages of a rank, change by change, so that any moment can be looked at afterwards."""

from collections.abc import Callable
from typing import NamedTuple


class Birth(NamedTuple):
    """A storage, by where it was born. ``number`` tells it from all others; an address is used again, this is not.

    ``phase`` and ``module`` are empty where nobody said; ``op`` is the operator that returned it first. ``host``:
    ``pinned`` or ``pageable`` for what is known to be in host memory (bench.measure.places).
    """

    number: int
    phase: str
    module: str
    op: str
    host: str | None = None


def on_device(storage: Birth) -> bool:
    """Whether ``storage`` is not known to be in host memory."""
    return storage.host is None


class StorageLog:
    """The storages that were live when the log began, and every change since.

    A *moment* is the number of changes before it: 0 is the beginning, ``len(log)`` now.
    """

    def __init__(self, start: dict[Birth, int]) -> None:
        self.start = start
        self._changes: list[tuple[Birth, int]] = []

    def __len__(self) -> int:
        return len(self._changes)

    def change(self, storage: Birth, size: int) -> None:
        """Add a change: ``storage`` has ``size`` bytes from now on; 0 is its release."""
        self._changes.append((storage, size))

    def live(self, moment: int) -> dict[Birth, int]:
        """Return the storages that were live at ``moment``, with their bytes."""
        live = dict(self.start)
        for storage, size in self._changes[:moment]:
            if size:
                live[storage] = size
            else:
                live.pop(storage, None)
        return live

    def highest(self, first: int, last: int, counts: Callable[[Birth], bool] = on_device) -> int:
        """Return the earliest moment from ``first`` to ``last``, both included, at which most bytes were live.

        Of the storages that ``counts`` holds for alone.
        """
        sizes = self.live(first)
        total = best_total = sum(size for storage, size in sizes.items() if counts(storage))
        best = first
        for moment, (storage, size) in enumerate(self._changes[first:last], first + 1):
            total += size - sizes.get(storage, 0) if counts(storage) else 0
            sizes[storage] = size
            if total > best_total:
                best, best_total = moment, total
        return best

    def newest(self, moment: int) -> Birth | None:
        """Return the storage whose change led to ``moment``; ``None`` at the beginning."""
        return self._changes[moment - 1][0] if moment else None
