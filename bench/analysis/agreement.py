"""Emulated rows beside measured rows of the same cell: what each says of one rank."""

from collections.abc import Iterable

from bench.analysis.tables import Table
from bench.analysis.units import mib
from bench.record import RankMemory, Record

NOTE = (
    "Emulated beside measured: the same cell, the same rank. 'diff' is emulated less measured; '=': equal to the byte. "
    "On CUDA, where the allocator counts whole blocks, the modelled allocator's figures stand in place of exact bytes."
)


def _same_cell(record: Record) -> str:
    """Return what a measured row and an emulated one of the same cell have in common."""
    ignored = {"emulation", "num_nodes", "warmup_steps", "steps", "seed", "data"}
    return record.cell.model_dump_json(exclude=ignored) + str(record.requested_stack)


def pairs(records: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Return each emulated row with the first measured one of the same cell, both presentable, in order."""
    done = [record for record in records if record.presentable and record.memory and record.comm]
    measured: dict[str, Record] = {}
    for record in done:
        if record.provenance == "measured":
            measured.setdefault(_same_cell(record), record)
    return [
        (measured[_same_cell(record)], record)
        for record in done
        if record.provenance == "emulated" and _same_cell(record) in measured
    ]


def _difference(emulated: int | None, measured: int | None) -> str:
    if emulated is None or measured is None:
        return ""
    if emulated == measured:
        return "="
    return f"{emulated - measured:+,} B ({(emulated - measured) / measured:+.2%})"


def _figures(measured: Record, emulated: Record) -> list[str]:
    assert measured.memory is not None
    assert emulated.memory is not None
    assert emulated.emulation is not None
    assert emulated.cell.emulation is not None
    here: RankMemory = measured.memory.ranks[emulated.cell.emulation.rank]
    there, allocator = emulated.memory.ranks[0], emulated.emulation.allocator
    blocks = here.peak_reserved_bytes is not None
    peak = allocator.peak_allocated_bytes if blocks else there.peak_allocated_bytes
    reserved = allocator.peak_reserved_bytes if blocks else None
    cells = [mib(here.peak_allocated_bytes), mib(peak), _difference(peak, here.peak_allocated_bytes)]
    cells += ["-" if blocks else _difference(there.steady_bytes, here.steady_bytes)]
    return [*cells, _difference(reserved, here.peak_reserved_bytes) or "-"]


def _traffic(measured: Record, emulated: Record) -> str:
    """Return whether rank 0's collectives are the same, kind by kind; of other ranks a record keeps only the bytes."""
    assert measured.comm is not None
    assert emulated.comm is not None
    assert emulated.cell.emulation is not None
    rank = emulated.cell.emulation.rank
    if rank == 0:
        kinds = [
            [row.model_dump(exclude={"wire_bytes", "group"}) for row in comm.collectives]
            for comm in (measured.comm, emulated.comm)
        ]
        return "same" if kinds[0] == kinds[1] else "NOT the same"
    moved = measured.comm.comm_bytes_per_step_by_rank[rank], emulated.comm.comm_bytes_per_step_by_rank[0]
    return "same bytes" if moved[0] == moved[1] else f"{moved[1] - moved[0]:+,} B"


def agreement(records: Iterable[Record]) -> list[Table]:
    """Return one table over all cells that were both measured and emulated; none where there is no such cell."""
    found = pairs(records)
    if not found:
        return []
    header = ["cell", "peak, measured", "emulated", "diff", "steady diff", "reserved diff", "collectives"]
    rows = [
        [
            f"{measured.label} rank {emulated.cell.emulation.rank if emulated.cell.emulation else 0}",
            *_figures(measured, emulated),
            _traffic(measured, emulated),
        ]
        for measured, emulated in found
    ]
    return [Table("Emulated beside measured", "One settled step", header, rows)]
