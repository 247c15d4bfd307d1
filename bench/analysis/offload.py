"""What offloaded rows keep on the host and on the device, what is pinned, and what crosses: a table of its own."""

from collections.abc import Iterable

from bench.analysis.tables import Table
from bench.analysis.units import mib
from bench.record import Offload, RankOffload, Record
from bench.validity.offload import SLACK_BYTES

NOTE = (
    "Offload: of the rank that holds most. On cpu, host and device are one memory: their sum is measured, and the "
    "split and what crosses between them are emulated, by the object of DeepSpeed that owns each storage. Steady: "
    "between two optimizer steps. Pinned: page-locked, without what PyTorch's allocator rounds up. To device, to host: "
    "bytes that cross in one optimizer step. Formula (bench/zero/offload.py): '=' where the five figures before it are "
    "the formula's, to 1 KiB; else the largest difference; '-': no formula. RSS: resident sets of a node's ranks "
    "together, measured, Python and libraries included."
)
_PREDICTED = {
    "device_steady_bytes": "device, steady",
    "host_steady_bytes": "host, steady",
    "pinned_bytes": "pinned",
    "host_to_device_bytes": "to device",
    "device_to_host_bytes": "to host",
}


def node_rss_bytes(record: Record) -> int | None:
    """Return the resident sets of the ranks of the fullest node together; ``None`` where they are not known."""
    if record.memory is None or record.provenance != "measured":
        return None
    nodes = record.effective.get("node_of_rank") or [0] * len(record.memory.ranks)
    sums: dict[int, int] = {}
    for node, rank in zip(nodes, record.memory.ranks, strict=True):
        sums[node] = sums.get(node, 0) + rank.host_peak_rss_bytes
    return max(sums.values())


def _against_formula(rank: RankOffload, expected: dict[str, int]) -> str:
    differences = [getattr(rank, name) - expected[name] for name in _PREDICTED if name in expected]
    if not differences:
        return "-"
    largest = max(differences, key=abs)
    return "=" if abs(largest) <= SLACK_BYTES else f"{largest:+,} B"


def _row(name: str, record: Record, found: Offload) -> list[str]:
    number = max(range(len(found.ranks)), key=lambda n: found.ranks[n].host_peak_bytes)
    rank, rss = found.ranks[number], node_rss_bytes(record)
    cells = [mib(rank.device_peak_bytes), mib(rank.host_peak_bytes), "-" if rss is None else mib(rss)]
    cells += [mib(getattr(rank, name)) for name in _PREDICTED]
    return [name, *cells, _against_formula(rank, found.predicted[number])]


def offload(records: Iterable[Record]) -> list[Table]:
    """Return one table over all rows that offload, each cell once; none where there is no such row."""
    rows: dict[tuple[str, str | None], list[str]] = {}
    for record in records:
        if record.offload is not None and record.presentable:
            cell = record.cell
            parts = (cell.model_name, cell.strategy_name, f"N={cell.world_size}", record.requested_stack)
            name = " ".join([*filter(None, parts), *(["emulated"] if cell.emulation is not None else [])])
            rows.setdefault((record.cell_id, record.requested_stack), _row(name, record, record.offload))
    header = ["row", "device, peak", "host, peak", "RSS of a node", *_PREDICTED.values(), "formula"]
    return [Table("Offload", "Host and device memory, and what crosses", header, [*rows.values()])] if rows else []
