"""What offloaded rows keep on the host and on the device, what is pinned, and what crosses: a table of its own."""

from collections.abc import Iterable

from bench.analysis.tables import Table
from bench.analysis.units import mib
from bench.record import Record

NOTE = (
    "Offload: of the rank that holds most. On cpu, host and device are one memory: their sum is measured, and the "
    "split and what crosses between them are emulated, by the object of DeepSpeed that owns each storage. Steady: "
    "between two optimizer steps. Pinned: page-locked, without what PyTorch's allocator rounds up. To device, to host: "
    "bytes that cross in one optimizer step. expected: by formula (bench/zero/offload.py). "
    "RSS: resident sets of the node's ranks together, measured, Python and libraries included."
)
_COLUMNS = {
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


def _row(record: Record) -> list[str]:
    assert record.offload is not None
    number = max(range(len(record.offload.ranks)), key=lambda n: record.offload.ranks[n].host_peak_bytes)  # type: ignore[union-attr]
    rank, expected = record.offload.ranks[number], record.offload.predicted[number]
    rss = node_rss_bytes(record)
    cells = [mib(rank.device_peak_bytes), mib(rank.host_peak_bytes), "-" if rss is None else mib(rss)]
    for name in _COLUMNS:
        counted = getattr(rank, name)
        if name in expected:
            difference = counted - expected[name]
            cells += [mib(counted), mib(expected[name]), f"{difference:+,} B" if difference else "="]
        else:
            cells += [mib(counted), "-", "-"]
    return [record.label, *cells]


def offload(records: Iterable[Record]) -> list[Table]:
    """Return one table over all rows that offload, each cell once; none where there is no such row."""
    rows = {record.label + record.provenance: record for record in records if record.offload is not None}
    if not rows:
        return []
    header = ["row", "device, peak", "host, peak", "RSS of a node"]
    header += [text for title in _COLUMNS.values() for text in (title, "expected", "diff")]
    return [Table("Offload", "Host and device memory, and what crosses", header, [_row(r) for r in rows.values()])]
