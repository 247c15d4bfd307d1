"""What a rule is, and the records it looks at."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.record import Collective, Record
from bench.zero.practice import CONTROL_ELEMENTS


@dataclass(frozen=True)
class Group:
    """Rows that share all settings but strategy and number of ranks: one completed record per cell.

    ``run`` holds those of the whole run, for what can only be said across groups.
    """

    rows: list[Record]
    run: list[Record]

    def beside(self, record: Record, *strategies: str) -> Record | None:
        """Return the row of the first of ``strategies`` that is there with the ranks and the stack of ``record``."""
        wanted = (record.cell.world_size, record.requested_stack)
        at = {row.cell.strategy_name: row for row in self.rows if (row.cell.world_size, row.requested_stack) == wanted}
        return next((at[name] for name in strategies if name in at), None)


@dataclass(frozen=True)
class Rule:
    """A sentence, and when it holds: ``measured`` names the rows where it does, with the numbers that say so.

    ``table`` is the title of the metric below whose table it stands; ``sources`` are public threads.
    """

    id: str
    table: str
    when: str
    sentence: str
    sources: tuple[str, ...]
    measured: Callable[[Group], dict[str, str]]


def name(record: Record) -> str:
    """Return a row's name within its group."""
    return " ".join(filter(None, (record.cell.strategy_name, record.requested_stack, f"N={record.cell.world_size}")))


def collectives(record: Record) -> list[Collective]:
    """Return what carries model data; a single rank sends nothing."""
    found = record.comm.collectives if record.comm else []
    return [row for row in found if row.num_elements > CONTROL_ELEMENTS and row.group_size > 1]


def volume(rows: Iterable[Collective]) -> int:
    """Return the bytes of the larger side over all calls of an optimizer step."""
    return sum(row.num_bytes * row.count for row in rows)


def reductions(record: Record) -> list[Collective]:
    """Return the gradient reductions of a step."""
    return [row for row in collectives(record) if row.phase == "backward" and "reduce" in row.op]
