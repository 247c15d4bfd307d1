"""The answers of a run as the page lays them out: GPU counts down, what they are chosen by across."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.analysis.answer import Answer


@dataclass(frozen=True)
class AtCount:
    """The answers at one GPU count of one group, by what they were chosen by."""

    world_size: int
    provenance: str
    by: dict[str, Answer]


@dataclass(frozen=True)
class Group:
    """``title`` names the settings that the compared rows share, ``by`` what there is an answer by."""

    title: str
    by: list[str]
    counts: list[AtCount]


def groups(answers: Sequence[Answer]) -> list[Group]:
    """Return ``answers`` by the settings that their rows share, in their order."""
    found: dict[str, dict[int, AtCount]] = {}
    for answer in answers:
        counts = found.setdefault(answer.group, {})
        at = counts.setdefault(answer.world_size, AtCount(answer.world_size, answer.provenance, {}))
        at.by[answer.by] = answer
    return [
        Group(title, list(dict.fromkeys(by for at in counts.values() for by in at.by)), list(counts.values()))
        for title, counts in found.items()
    ]
