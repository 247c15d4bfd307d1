"""All checks of one completed row, in one place."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding
from bench.validity.known_bad import known_bad
from bench.validity.settings import differences
from bench.zero.applicability import ignored_keys


def examine(
    cell: Cell, result: dict[str, Any], losses: list[float | None], expected_params: int | None
) -> list[Finding]:
    """Return what the checks find in ``result``, the content of a worker's ``result.json``."""
    found = []
    if None in losses:
        found.append(Finding(check="finite loss", verdict="invalid", text="the loss is not finite"))
    if result["skipped_steps"]:
        text = f"{result['skipped_steps']} optimizer steps were skipped: their time is not a step's time"
        found.append(Finding(check="applied steps", verdict="suspect", text=text))
    found += differences(cell, result["effective"])
    found += known_bad(result["stack"], cell, result["effective"] | {"backend": result["backend"]})
    found += [
        Finding(check="ignored settings", verdict="note", text=text)
        for text in ignored_keys(cell.zero_optimization, cell.strategy)
    ]
    if expected_params is not None and expected_params != result["num_params"]:
        text = f"the model has {result['num_params']} parameters, its configuration says {expected_params}"
        found.append(Finding(check="parameter count", verdict="suspect", text=text))
    if not all(rank["steady"] for rank in result["ranks"]):
        found.append(Finding(check="steady traffic", verdict="suspect", text="two counted steps moved different bytes"))
    text = "loss and gradients were not compared with a reference run"
    found.append(Finding(check="parity", verdict="unchecked", text=text))
    return found
