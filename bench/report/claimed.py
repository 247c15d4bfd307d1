"""Claims as the page lays them out: rows that say the same in one line, each linked to its part."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.claims import words
from bench.claims.rows import release
from bench.claims.verdict import Verdict
from bench.record import Record
from bench.report.cells import Part

LANGUAGE = "en"
# How many rows a line names: of hundreds that say the same, these stand for all.
NAMED = 12


@dataclass(frozen=True)
class Line:
    """Rows that say the same: ``rows`` are labels with the name of their part, ``more`` how many are not named."""

    supports: str
    rows: list[tuple[str, str]]
    more: int
    kind: str
    says: str


@dataclass(frozen=True)
class Claim:
    """A verdict and the rows behind it; ``count`` of them in all."""

    verdict: Verdict
    word: str
    claim: str
    because: str
    count: int
    lines: list[Line]


def _links(parts: Sequence[Part]) -> dict[tuple[str, int, str], str]:
    """Return the names of the parts by cell, repeat and stack, as evidence names them."""
    return {(part.record.cell_id, part.record.repeat, _stack(part.record)): part.id for part in parts}


def _stack(record: Record) -> str:
    return f"deepspeed {release(record)}"


def _lines(verdict: Verdict, links: dict[tuple[str, int, str], str]) -> list[Line]:
    found: dict[tuple[bool, str, str], list[tuple[str, str]]] = {}
    for row in verdict.evidence:
        kind = ", ".join([row.provenance, row.validity, row.stack])
        link = links.get((row.cell_id, row.repeat, row.stack), "")
        found.setdefault((row.supports, kind, row.says), []).append((row.label, link))
    return [
        Line(words.FOR[LANGUAGE][supports], rows[:NAMED], max(0, len(rows) - NAMED), kind, says)
        for (supports, kind, says), rows in sorted(found.items(), key=lambda item: not item[0][0])
    ]


def claims(verdicts: Sequence[Verdict], parts: Sequence[Part]) -> list[Claim]:
    """Return ``verdicts`` in their order, those with rows first."""
    links = _links(parts)
    return [
        Claim(
            verdict,
            words.WORDS[verdict.word][LANGUAGE],
            verdict.claim[LANGUAGE],
            verdict.because[LANGUAGE],
            len(verdict.evidence),
            _lines(verdict, links),
        )
        for verdict in sorted(verdicts, key=lambda verdict: not verdict.evidence)
    ]
