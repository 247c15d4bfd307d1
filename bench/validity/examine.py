"""All checks of one completed row, in one place."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding, Parity
from bench.validity import parity, ranks, settings, sharding
from bench.validity.known_bad import known_bad
from bench.zero.applicability import ignored_keys


def _counts(result: dict[str, Any], expected_params: int | None) -> list[Finding]:
    found = []
    if result["skipped_steps"]:
        text = f"{result['skipped_steps']} optimizer steps were skipped: their time is not a step's time"
        found.append(Finding(check="applied steps", verdict="suspect", text=text))
    if expected_params is not None and expected_params != result["num_params"]:
        text = f"the model has {result['num_params']} parameters, its configuration says {expected_params}"
        found.append(Finding(check="parameter count", verdict="suspect", text=text))
    trained = result["effective"].get("num_trainable_params")
    if trained is not None and trained != result["num_params"]:
        text = f"only {trained:,} of {result['num_params']:,} parameters are trained"
        found.append(Finding(check="parameter count", verdict="suspect", text=text))
    if not all(rank["steady"] for rank in result["ranks"]):
        found.append(Finding(check="steady traffic", verdict="suspect", text="two counted steps moved different bytes"))
    return found


def examine(
    cell: Cell,
    result: dict[str, Any],
    losses: list[float | None],
    expected_params: int | None,
    references: dict[int, dict[str, Any]],
) -> tuple[Parity, list[Finding]]:
    """Return the comparison with the reference run, and what all checks find in ``result``, a worker's ``result.json``.

    ``losses`` are the means over the ranks, ``None`` where not finite.
    """
    found = []
    if None in losses:
        found.append(Finding(check="finite loss", verdict="invalid", text="the loss is not finite"))
    compared, disagreements = parity.compare(cell, result, losses, references)
    found += disagreements
    found += ranks.check(cell, result)
    found += sharding.check(cell, result)
    found += settings.differences(cell, result["effective"])
    found += known_bad(result["stack"], cell, result["effective"] | {"backend": result["backend"]})
    found += _counts(result, expected_params)
    found += [
        Finding(check="ignored settings", verdict="note", text=text)
        for text in ignored_keys(cell.zero_optimization, cell.strategy)
    ]
    return compared, found
