"""All checks of one completed row, in one place."""

from dataclasses import dataclass
from typing import Any

from bench.plan import PlannedCell
from bench.record import Comm, Finding, Memory, Offload, Parity, Practice
from bench.validity import memory, offload, parity, ranks, settings, sharding, traffic
from bench.validity.known_bad import known_bad
from bench.validity.log import memory_pressure
from bench.zero.applicability import ignored_keys


@dataclass(frozen=True)
class Evidence:
    """What a launch left, as the record will have it. ``practice`` is ``None`` where no prediction holds.

    ``losses`` are means over the ranks, ``None`` where not finite; ``references`` the reference runs by their idle
    optimizer steps; ``log`` the text of all ranks.
    """

    losses: list[float | None]
    references: dict[int, dict[str, Any]]
    comm: Comm
    practice: Practice | None
    memory: Memory
    offload: Offload | None
    log: str


def _counts(planned: PlannedCell, result: dict[str, Any]) -> list[Finding]:
    found = []
    if timed := max(rank["skipped_in_timing"] for rank in result["ranks"]):
        text = f"{timed} timed optimizer steps were skipped: their time is not a step's time"
        found.append(Finding(check="applied steps", verdict="suspect", text=text))
    elif result["skipped_steps"]:
        text = f"{result['skipped_steps']} optimizer steps were skipped before the timed ones"
        found.append(Finding(check="applied steps", verdict="note", text=text))
    return found + same_model(planned, result) + steady(result)


def same_model(planned: PlannedCell, result: dict[str, Any]) -> list[Finding]:
    """Return whether the model is as large as its configuration says, and as much of it trained as was asked."""
    params, found = planned.params, []
    if params is not None and params.total != result["num_params"]:
        text = f"the model has {result['num_params']} parameters, its configuration says {params.total}"
        found.append(Finding(check="parameter count", verdict="suspect", text=text))
    trained = result["effective"].get("num_trainable_params")
    expected = result["num_params"] if planned.cell.finetuning == "full" else params.trained if params else trained
    if trained is not None and trained != expected:
        asked = "" if planned.cell.finetuning == "full" else f", {expected:,} were to be"
        text = f"only {trained:,} of {result['num_params']:,} parameters are trained{asked}"
        found.append(Finding(check="parameter count", verdict="suspect", text=text))
    return found


def as_read(planned: PlannedCell) -> list[Finding]:
    """Return how a configuration file became these settings."""
    return [Finding(check="configuration", verdict="note", text=note) for note in planned.notes]


def steady(result: dict[str, Any]) -> list[Finding]:
    """Return whether both counted steps moved the same, on every rank."""
    if all(rank["steady"] for rank in result["ranks"]):
        return []
    return [Finding(check="steady traffic", verdict="suspect", text="two counted steps moved different bytes")]


def predicted(
    stack: dict[str, str],
    comm: Comm,
    practice: Practice | None,
    counted: Memory,
    offloaded: Offload | None,
    first_rank: int = 0,
) -> list[Finding]:
    """Hold traffic and memory against what DeepSpeed's code is known to do; memory for the same release as traffic."""
    if practice is None:
        text = f"no prediction of traffic and memory for this cell under deepspeed {stack.get('deepspeed')}"
        return [Finding(check="traffic", verdict="note", text=text)]
    found = traffic.differences(comm, practice) + memory.check(counted, first_rank)
    found += offload.check(offloaded, first_rank)
    if not any(rank.points for rank in counted.ranks):
        text = f"memory is not decomposed here ({counted.kind}), so it was not compared"
        found.append(Finding(check="memory", verdict="note", text=text))
    return found


def examine(planned: PlannedCell, result: dict[str, Any], evidence: Evidence) -> tuple[Parity, list[Finding]]:
    """Return the comparison with the reference run, and what all checks find in ``result``, a worker's result."""
    cell = planned.cell
    found = []
    if None in evidence.losses:
        found.append(Finding(check="finite loss", verdict="invalid", text="the loss is not finite"))
    compared, disagreements = parity.compare(cell, result, evidence.losses, evidence.references)
    found += disagreements
    found += ranks.check(cell, result)
    found += sharding.check(cell, result)
    found += settings.differences(cell, result["effective"])
    found += settings.other_releases(planned.stack, result["stack"])
    found += known_bad(result["stack"], cell, result["effective"] | {"backend": result["backend"]})
    found += _counts(planned, result)
    found += predicted(result["stack"], evidence.comm, evidence.practice, evidence.memory, evidence.offload)
    found += memory_pressure(evidence.log)
    found += [
        Finding(check="ignored settings", verdict="note", text=text)
        for text in ignored_keys(cell.zero_optimization, cell.strategy)
    ]
    return compared, found + as_read(planned)
