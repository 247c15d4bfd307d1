"""The reference runs that a matrix needs: one per model, data and global batch, made once, before the cells.

A reference costs a training run of a few steps; all that are missing share one process.
RUN/references/<key>.json holds what bench.worker.reference found, or why there is nothing.
"""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cell import COUNTED_STEPS, SETTLING_STEPS, Cell
from bench.environment import installed
from bench.launch.deepspeed import Exit
from bench.plan import PlannedCell, Resources
from bench.store import write_json
from bench.zero.theory import BYTES_PER_ELEMENT

# As many steps as the counting pass takes; gradient norms are compared over its settling steps.
STEPS = SETTLING_STEPS + COUNTED_STEPS
# Raised when bench.worker.reference computes something else than before: older files are then made again.
_FORMAT = 2
# Parameters, their gradients, the fp32 sum of these, the clipped copy, fp32 master and two moments.
_BYTES_PER_PARAM = {"fp32": 28, "bf16": 24, "fp16": 24}
_SERIES = ("losses", "grad_norms", "applied_grad_norms")


def idle_steps(cell: Cell) -> tuple[int, ...]:
    """Return the numbers of idle optimizer steps for which ``cell`` may need a reference (docs/metrics.md, z0).

    An emulated one computes no loss that a reference could be held against.
    """
    if cell.emulation is not None:
        return ()
    return (0, 1) if cell.strategy == "z0" and cell.dtype != "fp32" else (0,)


def key(planned: PlannedCell, idle: int, device: str) -> str:
    """Return the name of a reference: 12 hex digits over all that its result depends on."""
    cell, versions = planned.cell, installed()
    settings = {
        "format": _FORMAT,
        "device": device,
        "torch": versions.get("torch"),
        "transformers": versions.get("transformers"),
        "config": planned.config,
        "corpus": planned.corpus,
        "data": cell.data.kind,
        "seed": cell.seed,
        "dtype": cell.dtype,
        "seq_length": cell.seq_length,
        "train_batch_size": cell.train_batch_size,
        "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
        "optimizer": cell.optimizer.model_dump(mode="json"),
        "steps": STEPS,
        "idle_steps": idle,
    }
    modes = {"lora": cell.lora, "freeze": cell.freeze}
    settings |= {name: mode.model_dump(mode="json") for name, mode in modes.items() if mode is not None}
    settings |= {"attn_implementation": cell.attn_implementation} if cell.attn_implementation else {}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a reference's file; ``None`` where there is none, or a torn or incomplete one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("error"), str):
        return {"error": found["error"]}
    if not all(_is_series(found.get(name)) for name in _SERIES) or not isinstance(found.get("gradients"), list):
        return None
    if not all(math.isfinite(value) for name in _SERIES for value in found[name]):
        return {"error": "the reference run itself did not stay finite", "final": True}
    return {name: found[name] for name in (*_SERIES, "gradients")}


def _is_series(values: Any) -> bool:
    return isinstance(values, list) and len(values) == STEPS and all(isinstance(value, float) for value in values)


def find(run: Path, planned: PlannedCell, device: str) -> dict[int, dict[str, Any]]:
    """Return the references of a cell by their idle steps; each has its ``key``, and figures or an ``error``."""
    found = {}
    for idle in idle_steps(planned.cell):
        name = key(planned, idle, device)
        result = _read(run / "references" / f"{name}.json") or {"error": "it was not run"}
        found[idle] = result | {"key": name}
    return found


def _misfit(planned: PlannedCell, offer: Resources) -> str | None:
    if planned.params is None:
        return None
    frozen = planned.params.total - planned.params.trained
    dtype = planned.cell.dtype
    needed = planned.params.trained * _BYTES_PER_PARAM[dtype] + frozen * BYTES_PER_ELEMENT[dtype]
    if needed <= offer.memory_bytes:
        return None
    return f"one process would need {needed / 2**30:.1f} GiB, there are {offer.memory_bytes / 2**30:.1f} GiB"


def missing(run: Path, cells: list[PlannedCell], offer: Resources) -> dict[str, dict[str, Any]]:
    """Return the jobs of the references that ``cells`` need and ``run`` lacks, by key; note those that cannot fit."""
    jobs: dict[str, dict[str, Any]] = {}
    for planned in cells:
        for idle in idle_steps(planned.cell):
            name = key(planned, idle, offer.device)
            out = run / "references" / f"{name}.json"
            known = _read(out) or {"error": "it was not run"}
            if name in jobs or "error" not in known or known.get("final"):
                continue
            if reason := _misfit(planned, offer):
                write_json(out, {"error": reason})
                continue
            jobs[name] = {
                "cell": planned.cell.model_dump(mode="json"),
                "model_config": planned.config,
                "corpus": planned.corpus,
                "device": offer.device,
                "steps": STEPS,
                "idle_steps": idle,
                "out": str(out),
            }
    return jobs


def make(
    run: Path, jobs: dict[str, dict[str, Any]], start: Callable[[Path, Path, float], Exit], timeout_s: float
) -> None:
    """Run ``jobs``, in one process as long as it lives; a job that ends it twice is noted, and the rest begin anew.

    ``start(list of jobs, log, timeout_s)`` runs ``bench.worker.reference`` on a list.
    """
    folder = run / "references"
    left, ended_by = dict(jobs), ""
    for name in left:
        (folder / f"{name}.json").unlink(missing_ok=True)
    while left:
        write_json(folder / "jobs.json", list(left.values()))
        ended = start(folder / "jobs.json", run / "logs" / "references.log", timeout_s * len(left))
        left = {name: job for name, job in left.items() if not Path(job["out"]).exists()}
        if left:
            first = next(iter(left))
            if ended.status is not None and ended_by != first:  # it may have been killed from outside
                ended_by = first
                continue
            how = "was not done in time" if ended.status is None else f"ended with status {ended.status}"
            write_json(folder / f"{first}.json", {"error": f"its process {how}; see logs/references.log"})
            del left[first]
    (folder / "jobs.json").unlink(missing_ok=True)
