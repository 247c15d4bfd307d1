"""DeepSpeed's comms logger: verbose lines, the summary table, and what ``log_summary(return_dict=True)`` gives.

Sizes are of the argument named ``tensor`` (deepspeed/comm/utils.py get_msg_size_from_args): of an all-gather this
rank's shard, of a reduce-scatter the whole input. A printed size has two decimals of its unit of 1024.
"""

import re
from collections.abc import Mapping
from typing import Any

from bench.imports.reading import Reading, Wanted, given, number, settings_of, suspect, text_of
from bench.imports.row import Given, Setting
from bench.record import Finding

_UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB", "EB"))}
_SIZE = r"(\d+(?:\.\d+)?) ?([KMGTPE]?B)"
_CALLER = r"(?: \| \[Caller Func: [^\]\n]{0,200}\])?"
_VERBOSE = re.compile(rf"comm op: (\w+){_CALLER} \| time \(ms\): (\S+) \| msg size: {_SIZE} \|")
_OP = re.compile(rf"^(\w+){_CALLER}\s*$")
_ROW = re.compile(rf"^\s+{_SIZE}\s+(\d{{1,15}})\s+(\d+\.\d+)(?:\s+-?\d+\.\d+){{3}}\s*$")

SYNCHRONISED = (
    "the comms logger waits for the device at every operation: its times, and any speed of the same run, are not those "
    "of a run without it (deepspeed/comm/comm.py timed_op)"
)
CONVENTIONS = (
    "comms logger sizes are of the shard for an all-gather and of the whole input for a reduce-scatter; its bandwidths "
    "multiply both by the number of all ranks, which is N times too much for a reduce-scatter and wrong for a subgroup"
)

# operation -> calls, bytes, milliseconds
Totals = dict[str, tuple[int, float, float]]


def _add(totals: Totals, op: str, count: int, num_bytes: float, time_ms: float) -> None:
    before = totals.get(op, (0, 0.0, 0.0))
    totals[op] = (before[0] + count, before[1] + num_bytes, before[2] + time_ms)


def _verbose(log: str) -> Totals:
    totals: Totals = {}
    for op, time_ms, size, unit in _VERBOSE.findall(log):
        _add(totals, op, 1, float(size) * _UNITS[unit], float(number(time_ms) or 0))
    return totals


def _table(log: str) -> Totals:
    """Return the last summary table; the one of stragglers below it repeats the same calls."""
    totals: Totals = {}
    inside, op = False, None
    for line in log.splitlines():
        if "Comm. Op" in line and "Message Size" in line:
            inside, op = "tput_avg" in line, None
            totals = {} if inside else totals
        elif inside and (named := _OP.match(line)):
            op = named[1]
        elif inside and op and (row := _ROW.match(line)):
            _add(totals, op, int(row[3]), float(row[1]) * _UNITS[row[2]] * int(row[3]), float(row[4]))
        else:
            inside = inside and not line.strip()
    return totals


def _what(op: str) -> str:
    part = "shard" if "all_gather" in op else "whole input" if "reduce_scatter" in op else "tensor"
    return f"{part} x calls, rank 0, since logging began"


def _figures(totals: Totals) -> tuple[list[Given], list[Finding]]:
    wanted: list[Wanted] = []
    for op, (count, num_bytes, time_ms) in totals.items():
        if num_bytes:
            whole = round(num_bytes) if number(num_bytes) is not None else num_bytes
            wanted.append(("traffic", f"{op}_bytes", whole, _what(op)))
        wanted.append(("traffic", f"{op}_calls", count, "rank 0, since logging began"))
        wanted.append(("time", f"{op}_ms", round(time_ms, 2), "sum of the calls, synchronised"))
    return given(wanted)


def _reading(totals: Totals, ran: dict[str, Setting]) -> Reading | None:
    if not totals:
        return None
    figures, refused = _figures(totals)
    findings = [suspect(SYNCHRONISED)]
    findings += [suspect(CONVENTIONS)] if any("all_gather" in op or "reduce_scatter" in op for op in totals) else []
    return Reading("DeepSpeed comms log", figures, findings + refused, ran)


def comms(log: str) -> Reading | None:
    """Read the comms logger's part of a log: the last summary table, without one the verbose lines."""
    return _reading(_table(log) or _verbose(log), {})


def is_summary(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is what ``log_summary(return_dict=True)`` gave."""
    return isinstance(data.get("summary"), dict) and isinstance(data.get("metadata"), dict)


def summary(data: Mapping[str, Any]) -> Reading | None:
    """Read such an object, which has exact sizes."""
    totals: Totals = {}
    for op, sizes in data["summary"].items():
        for row in sizes.values() if isinstance(sizes, dict) else ():
            found = row if isinstance(row, dict) else {}
            values = [number(found.get(key)) for key in ("count", "msg_size_bytes", "total_latency_ms")]
            if None not in values:
                count, num_bytes, time_ms = (float(value or 0) for value in values)
                _add(totals, text_of(op), int(count), num_bytes * count, time_ms)
    return _reading(totals, settings_of(data["metadata"], ("world_size",)))
