"""Sentences below a comparison: each says what was measured, what it means, and who has met it before."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.analysis.rules import RULES
from bench.analysis.rules.rule import Group, Rule
from bench.record import Record


@dataclass(frozen=True)
class Explanation:
    """A rule that holds in a group: ``rows`` maps each row it holds for to its numbers.

    ``counted`` is where these come from: ``measured`` or ``emulated``.
    """

    rule: Rule
    rows: dict[str, str]
    counted: str = "measured"

    @property
    def text(self) -> str:
        """The sentence with its numbers and sources, on one line."""
        numbers = "; ".join(f"{row}: {each}" for row, each in self.rows.items())
        said = f"{self.rule.sentence} {self.counted.capitalize()}: {numbers}."
        return f"{said} [{self.rule.id}: {', '.join(self.rule.sources)}]"


def usable(records: Iterable[Record]) -> list[Record]:
    """Return one record per cell and stack, the first launch that completed and is not known to be wrong."""
    found: dict[tuple[str, str | None], Record] = {}
    for record in records:
        if record.presentable:
            found.setdefault((record.cell_id, record.requested_stack), record)
    return list(found.values())


def explanations(records: Iterable[Record], run: Iterable[Record] = ()) -> list[Explanation]:
    """Return what the rules say of ``records``, which share all settings but strategy and number of ranks.

    ``run`` holds all records of the run, for the rules that compare across groups.
    """
    group = Group(rows=usable(records), run=usable(run))
    kinds = "/".join(dict.fromkeys(record.provenance for record in group.rows)) or "measured"
    found = [Explanation(rule, rule.measured(group), kinds) for rule in RULES]
    return [explanation for explanation in found if explanation.rows]


def markdown() -> str:
    """Return the table of docs/metrics.md."""
    lines = ["| id | below | when | sources |", "|---|---|---|---|"]
    for rule in RULES:
        links = ", ".join(f"[{s}](https://github.com/{s.replace('#', '/issues/')})" for s in rule.sources)
        lines.append(f"| {rule.id} | {rule.table} | {rule.when} | {links} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
