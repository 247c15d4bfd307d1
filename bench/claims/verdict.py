"""What records say of a claim."""

from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["confirmed", "refuted", "depends-on", "not-yet-measured"]
Kind = Literal["states", "memory", "traffic", "speed"]
Text = dict[str, str]  # by language: en, zh


@dataclass(frozen=True)
class Evidence:
    """A row behind a verdict: ``says`` is what of it speaks for (or against) the claim, with its numbers.

    ``others`` are the ids of the rows that it was compared with, ``facts`` the settings by which rows that support a
    claim are told from those that contradict it (bench.claims.separate).
    """

    label: str
    cell_id: str
    repeat: int
    stack: str
    provenance: str
    validity: str
    supports: bool
    says: str
    says_zh: str = ""
    others: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """``claim`` and ``because`` by language (``en``, ``zh``). ``variable`` is set where the verdict is ``depends-on``.

    ``published`` are sentences, with their sources, of what others have published on it.
    """

    id: str
    word: Word
    claim: Text
    because: Text
    variable: str | None = None
    evidence: list[Evidence] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    kind: Kind = "states"
    variable_zh: str | None = None
    published_zh: list[str] = field(default_factory=list)
