"""The index of all rows: a line per record with its key numbers, linked to the row's part."""

from collections.abc import Sequence
from dataclasses import replace

from bench.analysis.units import mib
from bench.record import Record
from bench.report.cells import Part
from bench.report.layout import Column, Laid, Line

HEADER = (
    "row",
    "strategy",
    "N",
    "status",
    "validity",
    "from",
    "tokens/s per GPU",
    "step",
    "peak per GPU",
    "sent per step",
)


def _figures(record: Record) -> list[str]:
    """Return the key numbers, marked as the comparison tables mark them; none of a row that is known to be wrong."""
    timing, rate, memory, comm = record.timing, record.throughput, record.memory, record.comm
    if record.validity == "invalid":
        return ["", "", "", ""]
    mark = "?" if record.figures_suspect else "†" if record.validity == "suspect" else ""
    late = "?" if timing and timing.suspect_reasons else mark
    sent = comm.comm_wire_bytes_per_step if comm else None
    return [
        f"{rate.tokens_per_second_per_gpu:,.0f}{late}" if rate else "",
        f"{timing.step_time_s * 1e3:,.0f} ms{late}" if timing else "",
        mib(memory.peak_allocated_bytes) + mark if memory else "",
        "" if sent is None else mib(sent) + mark,
    ]


def _line(part: Part) -> Line:
    record, cell = part.record, part.record.cell
    keys = {
        "model": cell.model,
        "n": str(cell.world_size),
        "strategy": cell.strategy_name,
        "status": record.status,
        "validity": record.validity,
    }
    words = [cell.strategy_name, str(cell.world_size), record.status, record.validity, record.provenance]
    return Line([part.label, *words, *_figures(record)], keys, {0: part.id})


def index(parts: Sequence[Part]) -> Laid:
    """Return the index of ``parts``, in their order, without the figures that none of them has."""
    lines = [_line(part) for part in parts]
    kept = [at for at, name in enumerate(HEADER) if any(line.cells[at] for line in lines)]
    lines = [replace(line, cells=[line.cells[at] for at in kept]) for line in lines]
    return Laid("All rows", [Column(HEADER[at]) for at in kept], lines)
