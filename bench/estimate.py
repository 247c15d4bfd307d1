"""How long cells will take, from what earlier runs on this machine took."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import Cell
from bench.errors import StoreError
from bench.models.counts import flops_per_token
from bench.plan import PlannedCell
from bench.record import Record
from bench.store import read_records

# Where there is no history: start-up of one launch and sustained rate of one rank. Assumptions, and named so.
ASSUMED_LAUNCH_S = 25.0
ASSUMED_TFLOPS = {"cpu": 0.01, "cuda": 50.0}


@dataclass(frozen=True)
class History:
    """Wall seconds of finished launches by cell and stack; typical start-up and rate (by dtype) that they show."""

    wall_s: dict[tuple[str, str | None], float]
    launch_s: float
    tflops: dict[str, float]
    device: str


def history(results: Path, device: str) -> History:
    """Read what the run folders under ``results`` tell; a damaged folder tells nothing."""
    records: list[Record] = []
    for run in sorted(results.glob("*/records")):
        try:
            records += [r for r in read_records(run.parent) if r.status == "completed" and r.device == device]
        except StoreError:
            continue
    walls = {(r.cell_id, r.requested_stack): r.launch.wall_time_s for r in records if r.launch}
    starts: list[float] = []
    rates: dict[str, list[float]] = {}
    for record in records:
        if record.launch and record.timing and record.throughput:
            steps_s = record.cell.total_steps * record.timing.step_time_s
            starts.append(max(0.0, record.launch.wall_time_s - steps_s))
            if record.throughput.tflops_per_gpu:
                rates.setdefault(record.cell.dtype, []).append(record.throughput.tflops_per_gpu)
    return History(
        walls,
        statistics.median(starts) if starts else ASSUMED_LAUNCH_S,
        {dtype: statistics.median(seen) for dtype, seen in rates.items()},
        device,
    )


def _step_s(cell: Cell, config: dict[str, Any], ranks: int, known: History) -> float:
    """Return the expected seconds of one optimizer step that ``ranks`` processes share."""
    flops = (flops_per_token(config, cell.seq_length) or 0.0) * cell.seq_length * cell.train_batch_size
    tflops = known.tflops.get(cell.dtype, ASSUMED_TFLOPS[known.device])
    return flops / ranks / (tflops * 1e12)


def seconds(planned: PlannedCell, known: History) -> float:
    """Return the expected wall time of one launch of a cell, in seconds."""
    cell = planned.cell
    if (wall_s := known.wall_s.get((planned.cell_id, planned.stack))) is not None:
        return wall_s
    return known.launch_s + cell.total_steps * _step_s(cell, planned.config, cell.world_size, known)


def reference_seconds(jobs: Iterable[dict[str, Any]], known: History) -> float:
    """Return the expected wall time of the reference runs ``jobs`` (bench.references), which share one start-up."""
    steps = ((int(job["steps"]), Cell.model_validate(job["cell"]), job["model_config"]) for job in jobs)
    return known.launch_s + sum(count * _step_s(cell, config, 1, known) for count, cell, config in steps)
