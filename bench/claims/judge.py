"""Records -> a verdict on every claim."""

from collections.abc import Sequence

from bench.claims.verdict import Verdict
from bench.record import Record


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Return the verdict that ``records`` amount to on every claim, in the order of the article."""
    return []
