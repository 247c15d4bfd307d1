"""How long cells will take, from what earlier runs took.

A cell takes as long as the newest completed run of it did: on the stack of now if there is one, else on other versions,
else in another requested stack. Where its ranks were started another way (``isolation``: ``fork`` or ``process``), the
steps of that run count, and the median of what lies outside them in the wanted way. A cell that never ran is put
together from medians. What no run shows is assumed, and named so.
"""

import heapq
import json
import math
import platform
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import COUNTED_STEPS, SETTLING_STEPS, Cell
from bench.environment import installed
from bench.models.counts import flops_per_token
from bench.plan import PlannedCell
from bench.record import SCHEMA_VERSION
from bench.stacks import is_release, releases

# Of one launch, by how its ranks are started: seconds outside the steps (start-up, building model and engine).
ASSUMED_OUTSIDE_S = {"fork": 2.0, "process": 25.0}
# Sustained rate of one rank, by device.
ASSUMED_TFLOPS = {"cpu": 0.01, "cuda": 50.0}
# A step of a model whose FLOPs no formula gives.
ASSUMED_STEP_S = 1.0
# A cell that is emulated: from a second for a small model to a minute for 70B parameters on 1024 ranks.
ASSUMED_EMULATED_S = 10.0
# Launches of a search for the largest batch: a proposal that is right and the next size, or some more.
ASSUMED_TRIES = 4
# Of a store the newest rows, about 0.2 ms each, more with more ranks.
_READ_AT_MOST = 2000


@dataclass(frozen=True)
class Launched:
    """What a completed launch tells of later ones: seconds in all, and in the steps of counting and timed pass.

    ``versions`` are those that its ranks imported. An ``emulated`` one has no timed pass. ``counted_step``: an
    instrumented step costs that many plain ones. ``searched``: several launches, which tell nothing of others.
    """

    cell_id: str
    requested_stack: str | None
    versions: dict[str, str]
    started_at: str
    isolation: str
    wall_s: float
    steps_s: float
    emulated: bool
    agents_start_s: float | None
    step_s: float | None
    counted_step: float | None
    dtype: str
    tflops: float | None
    searched: bool = False


@dataclass(frozen=True)
class History:
    """What completed launches on ``device`` tell; ``versions``: of what is installed now.

    ``runs`` are by cell. Medians over all of them: ``outside_s`` by isolation, ``tflops`` of a rank by dtype, the rest
    as in `Launched`; left out, or ``None``, where no launch shows them.
    """

    device: str
    versions: dict[str, str]
    runs: dict[str, list[Launched]]
    outside_s: dict[str, float]
    emulated_s: float | None
    agents_start_s: float | None
    tflops: dict[str, float]
    step_s: float | None
    counted_step: float | None


def _positive(value: Any) -> float | None:
    """Return a stored figure, ``None`` for one that was not measured or makes no sense."""
    return None if value is None or not 0 < (number := float(value)) < math.inf else number


def _launched(text: str, device: str) -> Launched | None:
    """Read what is needed of a record, without the cost of checking the rest; ``None`` if it tells nothing.

    All schema versions so far hold these fields alike.
    """
    try:
        data = json.loads(text)
        emulated = data.get("provenance") == "emulated"  # on any device
        here = emulated or data["device"] == device
        if data["status"] != "completed" or not here or data["schema_version"] > SCHEMA_VERSION:
            return None
        cell, launch, activity_s = Cell.model_construct(**data["cell"]), data["launch"], data.get("activity_s") or {}
        tries = data.get("batch_search") or []
        wall_s = _positive(sum(each["wall_time_s"] for each in tries) if tries else launch["wall_time_s"])
        step_s = None if emulated else _positive(data["timing"]["step_time_s"])
        if wall_s is None or (step_s is None and not emulated):
            return None
        counting_s, timed_s = (_positive(activity_s.get(name)) for name in ("counting pass", "timed pass"))
        if step_s is None:
            steps_s = counting_s or 0.0
        else:
            steps_s = cell.total_steps * step_s if counting_s is None or timed_s is None else counting_s + timed_s
        return Launched(
            cell_id=str(data["cell_id"]),
            requested_stack=data.get("requested_stack"),
            versions={name: str(version) for name, version in data["stack"].items()},
            started_at=str(launch["started_at"]),
            isolation=str(launch.get("isolation", "process")),
            wall_s=wall_s,
            steps_s=steps_s,
            emulated=emulated,
            agents_start_s=_positive(launch.get("agents_start_s")),
            step_s=step_s,
            counted_step=None
            if counting_s is None or step_s is None
            else counting_s / (SETTLING_STEPS + COUNTED_STEPS) / step_s,
            dtype=str(cell.dtype),
            tflops=_positive((data.get("throughput") or {}).get("tflops_per_gpu")),
            searched=bool(tries),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _texts(results: Path) -> Iterator[str]:
    """Yield the newest records under ``results``; also those put aside, or a fresh run would not know its past."""

    def changed(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # a runner has just put it aside
            return 0.0

    paths = [path for where in ("*/records", "*/superseded/*/records") for path in results.glob(f"{where}/*.json")]
    for path in heapq.nlargest(_READ_AT_MOST, paths, key=changed):
        try:
            yield path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue


def _medians(pairs: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for name, value in pairs:
        if value is not None:
            groups.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in groups.items()}


def _median(values: Iterable[float | None]) -> float | None:
    return _medians(("", value) for value in values).get("")


def history(results: Path, device: str) -> History:
    """Read what the run folders under ``results`` tell; a record that is damaged or of a newer schema tells nothing."""
    found = [launched for text in _texts(results) if (launched := _launched(text, device)) is not None]
    runs: dict[str, list[Launched]] = {}
    for each in found:
        runs.setdefault(each.cell_id, []).append(each)
    return History(
        device=device,
        versions={"python": platform.python_version(), **installed()},
        runs=runs,
        outside_s=_medians(
            (each.isolation, max(0.0, each.wall_s - each.steps_s))
            for each in found
            if not each.emulated and not each.searched
        ),
        emulated_s=_median(each.steps_s for each in found if each.emulated and not each.searched),
        agents_start_s=_median(each.agents_start_s for each in found),
        tflops=_medians((each.dtype, each.tflops) for each in found),
        step_s=_median(each.step_s for each in found),
        counted_step=_median(each.counted_step for each in found),
    )


def _likeness(run: Launched, stack: str | None, known: History) -> int:
    """Return 2 for a run on the stack of now, 1 for one on other versions, 0 for one of another requested stack."""
    if run.requested_stack != stack:
        return 0
    now = known.versions | releases(stack)
    same = all(is_release(run.versions[name], now[name]) for name in now.keys() & run.versions.keys())
    return 2 if same and run.versions else 1


def _closest(planned: PlannedCell, known: History) -> tuple[int, Launched | None]:
    """Return the run that says most about a cell, and its likeness."""
    ranked = [(_likeness(run, planned.stack, known), run) for run in known.runs.get(planned.cell_id, [])]
    return max(ranked, key=lambda each: (each[0], each[1].started_at), default=(0, None))


def is_known(planned: PlannedCell, known: History) -> bool:
    """Whether the cell's time is that of its last run on the stack of now."""
    return _closest(planned, known)[0] == 2


def _outside_s(known: History, isolation: str) -> float:
    return known.outside_s.get(isolation, ASSUMED_OUTSIDE_S[isolation])


def _step_s(cell: Cell, config: dict[str, Any], ranks: int, known: History) -> float:
    """Return the expected seconds of one optimizer step that ``ranks`` processes share."""
    flops = flops_per_token(config, cell.seq_length)
    if flops is None:  # a family without a formula: as long as steps here are, of whatever model
        return ASSUMED_STEP_S if known.step_s is None else known.step_s
    tflops = known.tflops.get(cell.dtype, ASSUMED_TFLOPS[known.device])
    return flops * cell.seq_length * cell.train_batch_size / ranks / (tflops * 1e12)


def seconds(planned: PlannedCell, known: History, isolation: str = "fork") -> float:
    """Return the expected wall time of one launch of a cell, in seconds; without the start of warm agents."""
    run = _closest(planned, known)[1]
    if run is not None and run.searched:
        return run.wall_s
    if run is not None:
        return run.wall_s if run.isolation == isolation else run.steps_s + _outside_s(known, isolation)
    return _never_ran_s(planned.cell, planned.config, known, isolation) * (
        ASSUMED_TRIES if planned.cell.largest_batch is not None else 1
    )


def _never_ran_s(cell: Cell, config: dict[str, Any], known: History, isolation: str) -> float:
    if cell.emulation is not None:
        return _outside_s(known, isolation) + (ASSUMED_EMULATED_S if known.emulated_s is None else known.emulated_s)
    counting = (SETTLING_STEPS + COUNTED_STEPS) * (known.counted_step or 1.0)
    step_s = _step_s(cell, config, cell.world_size, known)
    return _outside_s(known, isolation) + (counting + cell.warmup_steps + cell.steps) * step_s


def agents_seconds(known: History) -> float:
    """Return the expected seconds that warm agents take to start: they do what a launch in ``process`` does first."""
    return _outside_s(known, "process") if known.agents_start_s is None else known.agents_start_s


def starts(
    launches: Iterable[tuple[str | None, int]], known: History, isolation: str = "fork", *, running: Iterable[Any] = ()
) -> list[float]:
    """Return for each launch, in order, the seconds that starting agents takes before it.

    They start once per stack and repeat, which ``launches`` are given by, with ``fork`` only. ``running``: those whose
    agents are there already.
    """
    seen = set(running)
    found = []
    for each in launches:
        found.append(agents_seconds(known) if isolation == "fork" and each not in seen else 0.0)
        seen.add(each)
    return found


def reference_seconds(jobs: Iterable[dict[str, Any]], known: History, isolation: str = "fork") -> float:
    """Return the expected wall time of the reference runs ``jobs`` (bench.references), which share one process."""
    steps = ((int(job["steps"]), Cell.model_validate(job["cell"]), job["model_config"]) for job in jobs)
    steps_s = sum(count * _step_s(cell, config, 1, known) for count, cell, config in steps)
    return steps_s + _outside_s(known, isolation)


def basis(planned: Iterable[PlannedCell], known: History, isolation: str = "fork") -> str:
    """Return in words what the times of the cells ``planned`` (one at least; repeats count once) are taken from."""
    if not known.runs:
        return "by an assumed start-up and speed"
    likeness = [_closest(each, known) for each in {(each.cell_id, each.stack): each for each in planned}.values()]
    last = sum(alike == 2 for alike, _ in likeness)
    elsewhere = sum(run is not None for _, run in likeness) - last
    counts = [
        (last, "by their last run on this stack"),
        (elsewhere, "by a run on another stack"),
        (len(likeness) - last - elsewhere, "by the speed of other cells"),
    ]
    (count, first), *rest = [each for each in counts if each[0]]
    parts = [first if not rest else f"{count} of {len(likeness)} cells {first}"]
    parts += [f"{count} {words}" for count, words in rest]
    assumed = isolation not in known.outside_s and any(r is None or r.isolation != isolation for _, r in likeness)
    return ", ".join(parts) + ("; start-up assumed" if assumed else "")
