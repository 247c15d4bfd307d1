"""A claim as data: what is said, in a form that rows can answer, and where to look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.claims.verdict import Evidence, Kind, Text
from bench.record import Record


@dataclass(frozen=True)
class Found:
    """What the rows say: each piece of evidence, and sentences that belong beside it."""

    evidence: list[Evidence]
    also: list[Text] = field(default_factory=list)


@dataclass(frozen=True)
class Claim:
    """``statement`` is the claim in our words, so that a row can support or contradict it; ``needs`` says what rows
    it takes, ``look`` finds them. ``published``: which figures of published rows are set beside it (``throughput``,
    ``memory``), of comparisons that have all ``published_stages``.
    """

    id: str
    kind: Kind
    statement: Text
    needs: Text
    look: Callable[[Sequence[Record]], Found]
    published: tuple[str, ...] = ()
    published_stages: tuple[str, ...] = ()


def text(en: str, zh: str) -> Text:
    """Return a text in both languages."""
    return {"en": en, "zh": zh}
