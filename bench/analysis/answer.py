"""The answer on top: which strategy for each model and GPU count, by how much, and why.

By speed only what was timed and is separated: at least three launches of each, every launch of one faster than every
launch of the other. By memory and traffic, which repeat exactly, one launch is enough.
"""

from dataclasses import dataclass
from itertools import product

import pandas as pd

from bench.analysis.comparison import SAME
from bench.analysis.tables import Table, failures, groups, number
from bench.analysis.titles import Line
from bench.analysis.units import mib

_NO_ROOM = {"oom", "host_oom"}
LAUNCHES = 3  # that a ranking by speed needs: steps of one launch are not independent


@dataclass(frozen=True)
class Answer:
    """``group`` names the settings that the compared rows share, ``provenance`` where the numbers come from.

    ``by`` is what is compared: ``speed``, ``peak memory`` or ``traffic``. ``strategy`` is the best (several: equal),
    ``None`` where the rows do not say; ``margin`` by how much it leads ``runner_up``, in words; ``why`` a sentence.
    """

    group: str
    model: str
    world_size: int
    provenance: str
    strategy: str | None
    by: str
    margin: str
    runner_up: str | None
    why: str


def answers(lines: pd.DataFrame) -> list[Answer]:
    """Return the answers of a comparison, for each group of one global batch, stack and GPU count."""
    found = []
    for group in groups(lines, SAME):
        counts = sorted({line["world_size"] for line in group})
        for stack, n in product(dict.fromkeys(line["stack"] for line in group), counts):
            at = [line for line in group if (line["stack"], line["world_size"]) == (stack, n)]
            if len(at) > 1:
                found += [answer for answer in (_speed(at), _memory(at), _traffic(at)) if answer]
    return found


def _name(line: Line) -> str:
    return str(line["strategy"])


def _answer(lines: list[Line], by: str, **said: str | None) -> Answer:
    first = lines[0]
    return Answer(
        group=first["group"] + (f", {first['stack']}" if first["requested_stack"] else ""),
        model=first["model"],
        world_size=int(first["world_size"]),
        provenance="/".join(dict.fromkeys(line["provenance"] for line in lines)),
        by=by,
        strategy=said.get("strategy"),
        margin=said.get("margin") or "",
        runner_up=said.get("runner_up"),
        why=said.get("why") or "",
    )


def _speed(lines: list[Line]) -> Answer | None:
    timed = [line for line in lines if number(line, "step_time_s") is not None]
    if len(timed) < 2:
        return None
    by = "speed" if timed[0]["device"] == "cuda" else "speed of CPU ranks"
    beyond = "" if timed[0]["device"] == "cuda" else " Times of CPU ranks say nothing about GPUs."
    doubtful = [line for line in timed if line["times_suspect"] or line["figures_suspect"]]
    timed = [line for line in timed if line not in doubtful]
    aside = f" Left aside, their times being suspect: {', '.join(map(_name, doubtful))}." if doubtful else ""
    aside += _no_candidates([f"{_name(line)}: {line['outcome']}" for line in lines if line["launches"] == 0])
    if len(timed) < 2:
        return _answer(
            lines, by, margin="not separated", why=f"Fewer than two rows have times to compare.{aside}{beyond}"
        )
    best, second = sorted(timed, key=lambda line: float(line["step_time_s"]))[:2]
    times = f"{_times(best)}, {_times(second)}"
    few = min(best["launches"], second["launches"])
    if few < LAUNCHES:
        why = f"{times}; at least {LAUNCHES} launches of each are needed to tell which is faster.{aside}{beyond}"
        return _answer(lines, by, margin="not separated", why=why)
    if best["step_time_max_s"] >= second["step_time_min_s"]:
        return _answer(lines, by, margin="not separated", why=f"Launches overlap: {times}.{aside}{beyond}")
    lead = f"{second['step_time_s'] / best['step_time_s'] - 1:.0%} faster"
    why = f"Every launch of the one is faster than every launch of the other: {times}.{aside}{beyond}"
    return _answer(lines, by, strategy=_name(best), margin=lead, runner_up=_name(second), why=why)


def _times(line: Line) -> str:
    low, high = (f"{line[f'step_time_{word}_s'] * 1e3:,.1f}" for word in ("min", "max"))
    spread = low if low == high else f"{low} to {high}"
    counted = f"{line['launches']} launch{'es' if line['launches'] > 1 else ''}"
    return f"{_name(line)} {spread} ms ({counted}){failures(line)}"


def _fits(line: Line) -> bool:
    return line["launches"] > 0 and (line["provenance"] != "emulated" or bool(line["fits"]))


def _left_out(lines: list[Line]) -> str:
    """Return which rows are no candidates, and why, in words."""
    said = []
    for line in lines:
        if line["launches"] == 0:
            said.append(f"{_name(line)}: {line['outcome']}")
        elif not _fits(line):
            said.append(f"{_name(line)} does not fit ({mib(line['peak_allocated_bytes'])})")
        elif line["figures_suspect"]:
            said.append(f"{_name(line)}: its figures are suspect")
    return _no_candidates(said)


def _no_candidates(said: list[str]) -> str:
    return f" Not candidates: {'; '.join(said)}." if said else ""


def _with_failures(line: Line) -> str:
    return f"{_name(line)}{failures(line)}"


def _least(lines: list[Line], by: str, column: str, verb: str) -> Answer | None:
    """Return the answer by the least of an exact metric, among the rows that fit; ties are named together."""
    known = [line for line in lines if _fits(line) and not line["figures_suspect"]]
    known = [line for line in known if number(line, column) is not None]
    if not known:
        room = any(_fits(line) if line["launches"] else set(line["outcome"].split("/")) - _NO_ROOM for line in lines)
        return _answer(lines, by, margin="no row says" if room else "none fits", why=_left_out(lines).strip())
    known.sort(key=lambda line: float(line[column]))
    least = float(known[0][column])
    best = [line for line in known if line[column] == least]
    others = known[len(best) :]
    why = f"{' and '.join(map(_with_failures, best))} {verb}{'' if len(best) > 1 else 's'} {mib(least)}"
    if not others:
        return _answer(lines, by, strategy=", ".join(map(_name, best)), why=f"{why}.{_left_out(lines)}")
    second = others[0]
    less = 1 - least / second[column]
    margin = f"{less:.0%} less" if less >= 0.01 else f"{second[column] - least:,.0f} B less"
    why += f", {_with_failures(second)} {mib(second[column])}.{_left_out(lines)}"
    return _answer(lines, by, strategy=", ".join(map(_name, best)), margin=margin, runner_up=_name(second), why=why)


def _memory(lines: list[Line]) -> Answer | None:
    return _least(lines, "peak memory", "peak_allocated_bytes", "hold")


def _traffic(lines: list[Line]) -> Answer | None:
    return None if lines[0]["world_size"] == 1 else _least(lines, "traffic", "comm_wire_bytes_per_step", "send")


def table(found: list[Answer]) -> list[Table]:
    """Return the answers as one table; none where there is none."""
    if not found:
        return []
    groups_of: dict[str, set[str]] = {}
    for answer in found:
        groups_of.setdefault(answer.model, set()).add(answer.group)
    rows = [
        [
            answer.model if len(groups_of[answer.model]) == 1 else answer.group,
            *(f"{answer.world_size}", answer.by, answer.strategy or "-", answer.margin, answer.why),
        ]
        for answer in found
    ]
    return [Table("Answers", "at one global batch", ["rows", "N", "by", "take", "margin", "why"], rows, wraps=True)]
