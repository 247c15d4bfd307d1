"""The same lines the other way round: per group and GPU count one table, strategies down, all metrics across."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.analysis.comparison import LARGEST, SAME
from bench.analysis.tables import Table, failures, first_column, groups, names_of, number, words
from bench.analysis.titles import Line
from bench.analysis.units import mib

NOTE = (
    "By GPU count: 'ms' is the median step time, of the launches' medians where n > 1; '±' the distance between the "
    "quartiles of what it is the median of; 'n' launches, failed ones in brackets. 'vs best' is to the best of the "
    "rows that are in no doubt and fit: the highest tokens/s, the lowest memory or traffic. 'reserved' is measured on "
    "CUDA and modelled where emulated; 'host' the highest resident set of a rank's process."
)


@dataclass(frozen=True)
class _Shown:
    """A column: its heading, where its number is, how it is written, and which doubt marks it."""

    heading: str
    column: str
    write: Callable[[float], str]
    marked: str | None = None


def _ratio(value: float) -> str:
    return f"{value:.2f}x"


def _ms(value: float) -> str:
    return f"{value * 1e3:,.1f}"


_SHOWN = (
    _Shown("ms", "step_time_s", _ms, "times"),
    _Shown("±", "spread_s", _ms),
    _Shown("tokens/s per GPU", "tokens_per_second_per_gpu", lambda value: f"{value:,.0f}", "times"),
    _Shown("vs {base}", "tokens_vs_base", _ratio, "times"),
    _Shown("vs best", "tokens_vs_best", _ratio, "times"),
    _Shown("MFU", "mfu", lambda value: f"{value:.1%}", "times"),
    _Shown("peak", "peak_allocated_bytes", mib, "figures"),
    _Shown("vs {base}", "peak_vs_base", _ratio, "figures"),
    _Shown("vs best", "peak_vs_best", _ratio, "figures"),
    _Shown("reserved", "reserved_bytes", mib, "figures"),
    _Shown("fits", "fits", lambda value: "yes" if value else "no"),
    _Shown("host", "host_peak_rss_bytes", mib),
    _Shown("sent per step", "comm_wire_bytes_per_step", mib, "figures"),
    _Shown("vs {base}", "sent_vs_base", _ratio, "figures"),
    _Shown("vs best", "sent_vs_best", _ratio, "figures"),
)


def _doubted(line: Line | None, marked: str | None) -> bool:
    if line is None or marked is None:
        return False
    return bool(line["figures_suspect"] or (marked == "times" and line["times_suspect"]))


def _mark(line: Line, base: Line | None, each: _Shown) -> str:
    """Return ``?`` for a number, or one side of a ratio, in doubt; ``†`` of a number where only training is doubted."""
    if _doubted(line, each.marked) or (each.column.endswith("_vs_base") and _doubted(base, each.marked)):
        return "?"
    return "†" if each.marked and each.write is not _ratio and line["training_suspect"] else ""


def _row(line: Line, base: Line | None, shown: Sequence[_Shown]) -> list[str]:
    cells = []
    for each in shown:
        value = number(line, each.column)
        cells.append("" if value is None else each.write(value) + _mark(line, base, each))
    if line["launches"] == 0:
        cells[0] = words(line)
    return [
        f"{line['strategy']} {line['variant']}".strip(),
        *cells,
        f"{line['launches']}{failures(line)}",
        line["validity"],
    ]


def _with_choices(line: Line) -> Line:
    """Return the line with the one spread and the one reserved figure that it shows."""
    launches, steps = number(line, "step_time_launch_iqr_s"), number(line, "step_time_iqr_s")
    modelled = number(line, "modelled_peak_reserved_bytes")
    return line | {
        "spread_s": steps if launches is None else launches,
        "reserved_bytes": number(line, "peak_reserved_bytes") if modelled is None else modelled,
    }


def _table(lines: list[Line], n: int) -> Table:
    lines = [_with_choices(line) for line in lines]
    shown = [each for each in _SHOWN if any(number(line, each.column) is not None for line in lines)] or list(
        _SHOWN[:1]
    )
    at = {(line["strategy"], line["variant"]): line for line in lines}
    header = [first_column(lines), *(each.heading.format(base=lines[0]["base"]) for each in shown), "n", "validity"]
    kinds = "/".join(dict.fromkeys(line["provenance"] for line in lines))
    title = f"N={n}, {kinds}" + (f", {LARGEST}" if lines[0]["view"] == LARGEST else "")
    by_number = {line["line"]: line for line in lines}
    rows = [_row(at[name], by_number.get(at[name]["base_line"]), shown) for name in names_of(lines)]
    return Table(lines[0]["group"], title, header, rows, block=1)


def tables(lines: pd.DataFrame) -> list[Table]:
    """Return one table per group and GPU count of a comparison, those of the same global batch first."""
    return [
        _table([line for line in group if line["world_size"] == n], n)
        for view in (SAME, LARGEST)
        for group in groups(lines, view)
        for n in sorted({line["world_size"] for line in group})
    ]
