"""What can be said before a launch: settings without effect, and releases whose results are known wrong."""

from collections.abc import Iterable

from bench.plan import PlannedCell
from bench.scenario import Scenario
from bench.stacks import releases
from bench.validity.known_bad import known_bad
from bench.zero.applicability import ignored_notes, why_ignored

SHOWN = 3


def _named(labels: list[str]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(labels[:SHOWN]) + more


def forewarnings(scenario: Scenario, cells: Iterable[PlannedCell], stack: dict[str, str], device: str) -> list[str]:
    """Return one sentence for each reason: which keys do nothing at any strategy, which cells ``stack`` spoils.

    A key that some of the strategies heed is no mistake; below the tables it is named with the others' reasons.
    """
    chosen = [entry for entry in cells if entry.refused is None]
    strategies = {entry.cell.strategy for entry in chosen}
    idle = [key for key in scenario.zero_optimization if all(why_ignored(key, strategy) for strategy in strategies)]
    notes = ignored_notes(idle, strategies)
    spoilt: dict[str, list[str]] = {}
    for entry in chosen:
        versions = stack | releases(entry.stack)
        for finding in known_bad(versions, entry.cell, {"backend": "nccl" if device == "cuda" else "gloo"}):
            spoilt.setdefault(finding.text, []).append(entry.label)
    return notes + [f"known-bad release: {text} [{_named(labels)}]" for text, labels in spoilt.items()]
