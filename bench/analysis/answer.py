"""The answer on top: which strategy for each model and GPU count, by how much, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.record import Record


@dataclass(frozen=True)
class Answer:
    """``group`` names the settings that the compared rows share, ``provenance`` where the numbers come from.

    ``strategy`` is the one to take, ``None`` where the rows do not say; ``by`` what it was chosen by, ``margin`` by
    how much it leads ``runner_up``, in words; ``why`` the reason in a sentence.
    """

    group: str
    model: str
    world_size: int
    provenance: str
    strategy: str | None
    by: str
    margin: str
    runner_up: str | None
    why: str


def answers(records: Sequence[Record]) -> list[Answer]:
    """Return one answer for each group of comparable rows and GPU count."""
    return []
