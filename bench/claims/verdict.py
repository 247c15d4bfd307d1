"""What records say of a claim."""

from dataclasses import dataclass, field
from typing import Literal

Word = Literal["confirmed", "refuted", "depends-on", "not-yet-measured"]


@dataclass(frozen=True)
class Evidence:
    """A row behind a verdict: ``says`` is what of it speaks for (or against) the claim, with its numbers."""

    label: str
    cell_id: str
    repeat: int
    stack: str
    provenance: str
    validity: str
    supports: bool
    says: str


@dataclass(frozen=True)
class Verdict:
    """``claim`` and ``because`` by language (``en``, ``zh``). ``variable`` is set where the verdict is ``depends-on``.

    ``published`` are sentences, with their sources, of what others have published on it.
    """

    id: str
    word: Word
    claim: dict[str, str]
    because: dict[str, str]
    variable: str | None = None
    evidence: list[Evidence] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
