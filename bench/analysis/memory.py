"""What holds a rank's memory, point by point, beside what is expected: a table per row, and where its peak is."""

from collections.abc import Iterable

from bench.analysis.tables import Table
from bench.record import MemoryPoint, Record
from bench.zero.memory import CATEGORIES

_GROUP = "Memory, decomposed"
DEFINITIONS = (
    "Points: init, engine built; forward and backward, the end of the last one of the counted step; step, the highest "
    "inside the optimizer step; peak, the highest of the whole step.",
    "Bytes of live tensor storages, each in one category (docs/metrics.md); categories sum to the total exactly. "
    "1 MiB = 1024^2 bytes.",
    "expected: what DeepSpeed's code keeps, by formula (bench/zero/memory.py); diff: counted less expected, '=' where "
    "they are the same bytes; '-': no formula.",
)


def in_doubt(record: Record) -> str:
    """Return what stands behind the name of a row whose figures are shown although they are known to be wrong."""
    return " (invalid)" if record.validity == "invalid" else ""


def _mib(value: float) -> str:
    return f"{value / 2**20:,.3f}"


def _difference(counted: int, expected: float | None) -> str:
    if expected is None:
        return "-"
    return "=" if counted == expected else f"{(counted - expected) / 2**20:+,.3f}"


def _largest_rank(record: Record) -> tuple[int, list[MemoryPoint]]:
    """Return the rank whose peak is highest, with its points; none where memory was not decomposed."""
    if record.memory is None:
        return 0, []
    return record.memory.peak_allocated_rank, record.memory.largest.points


def _row(category: str, points: list[MemoryPoint]) -> list[str]:
    cells = [category.replace("_", " ")]
    for point in points:
        counted, expected = point.bytes.get(category, 0), point.predicted.get(category)
        cells += [_mib(counted), "-" if expected is None else _mib(expected), _difference(counted, expected)]
    return cells


def _peaks(records: list[Record]) -> Table:
    """Return one row per record: its highest moment, what is expected of it, and the two categories that hold most."""
    rows = []
    for record in records:
        peak = _peak(record)
        if peak is None:
            continue
        expected = sum(peak.predicted.values()) if peak.predicted else None
        most = [f"{name.replace('_', ' ')} {size / peak.total_bytes:.0%}" for name, size in _holders(peak)]
        rows.append(
            [
                f"{record.label} r{record.repeat}{in_doubt(record)}",
                _mib(peak.total_bytes),
                "-" if expected is None else _mib(expected),
                _difference(peak.total_bytes, expected),
                peak.where,
                *most[:2],
            ]
        )
    return Table(_GROUP, "Peak of each row", ["MiB", "peak", "expected", "diff", "where", "most", "then"], rows)


def _peak(record: Record) -> MemoryPoint | None:
    return next((point for point in _largest_rank(record)[1] if point.point == "peak"), None)


def _holders(point: MemoryPoint) -> list[tuple[str, int]]:
    return sorted(point.bytes.items(), key=lambda item: -item[1])


def tables(records: Iterable[Record]) -> list[Table]:
    """Return the peaks, then one table per record whose memory was decomposed: categories down, points across."""
    records = list(records)
    found = [_peaks(records)] if any(_peak(record) for record in records) else []
    for record in records:
        rank, points = _largest_rank(record)
        if not points:
            continue
        present = {name for point in points for name in (*point.bytes, *point.predicted)}
        known = [name for name in CATEGORIES if name in present]
        rows = [_row(name, points) for name in known + sorted(present - set(CATEGORIES))]
        total = ["total"]
        for point in points:
            expected = sum(point.predicted.values()) if point.predicted else None
            total += [
                _mib(point.total_bytes),
                "-" if expected is None else _mib(expected),
                _difference(point.total_bytes, expected),
            ]
        header = ["MiB"] + [text for point in points for text in (point.point, "expected", "diff")]
        title = f"{record.label}, repeat {record.repeat}, rank {rank}{in_doubt(record)}"
        found.append(Table(_GROUP, title, header, [*rows, total]))
    return found


def sentence(record: Record) -> str | None:
    """Say where the peak of the record's largest rank is and what holds it; ``None`` where that is not known."""
    rank, peak = _largest_rank(record)[0], _peak(record)
    if peak is None:
        return None
    parts = [f"{name.replace('_', ' ')} {size / peak.total_bytes:.0%}" for name, size in _holders(peak)[:3] if size]
    text = (
        f"{record.label}, repeat {record.repeat}: the peak of rank {rank}, {_mib(peak.total_bytes)} MiB, is in "
        f"'{peak.where}'; it holds {', '.join(parts)}"
    )
    if not peak.predicted:
        return f"{text}; nothing is expected by formula."
    expected = sum(peak.predicted.values())
    return f"{text}; expected {_mib(expected)} MiB, counted {peak.total_bytes / expected - 1:+.2%}."


def notes(records: Iterable[Record]) -> list[str]:
    """Return the sentences of all records, then what a reader must know to read the tables."""
    records = list(records)
    said = [text for record in records if (text := sentence(record))]
    without = [record.label for record in records if record.status == "completed" and not _largest_rank(record)[1]]
    if without:
        said.append(f"Not decomposed (only storages on CPU are followed one by one): {', '.join(without)}.")
    return [*said, *DEFINITIONS]
