"""What a parser returns, and the few rules that all parsers share."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.imports.row import Given, Kind, Setting
from bench.record import Finding, Status

CHECK = "imported"
# A figure of a training run beyond this is damage, and would not print.
_LARGEST = 1e300
MAY_BE_NEGATIVE = ("training",)

# A figure that is wanted: its kind, its name with unit, the value as found, and what it covers.
Wanted = tuple[Kind, str, object, str]


@dataclass(frozen=True)
class Reading:
    """One run that a file tells of. ``identity`` is what makes it the same run when met again: by default the file."""

    format: str
    as_given: list[Given] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    status: Status | None = None
    reason: str | None = None
    identity: str | None = None


def suspect(text: str, affects: Literal["figures", "training"] = "figures") -> Finding:
    """Return the finding that a figure of this kind of file is not to be compared, or that its run trains otherwise."""
    return Finding(check=CHECK, verdict="suspect", text=text, affects=affects)


def number(value: object) -> int | float | None:
    """Return a usable number, from one or from its decimal text; ``None`` for all else, infinities and NaN included."""
    if isinstance(value, str):
        try:
            value = int(value) if value.isdecimal() and len(value) < 25 else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < _LARGEST else None
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """Return a count of at least 1, ``None`` for all else."""
    found = number(value)
    return int(found) if found is not None and found >= 1 and found == int(found) else None


def given(wanted: Iterable[Wanted]) -> tuple[list[Given], list[Finding]]:
    """Keep what is a number that such a figure can have; what is not becomes a finding. ``None`` is absent."""
    kept, refused = [], []
    for kind, name, value, what in wanted:
        found = number(value)
        if found is not None and (found >= 0 or kind in MAY_BE_NEGATIVE):
            kept.append(Given(kind=kind, name=name, value=found, what=what))
        elif value is not None:
            refused.append(suspect(f"{name} is {_shown(value)}: not kept"))
    return kept, refused


def _shown(value: object) -> str:
    """Return a foreign value for a message: short, on one line."""
    try:
        text = repr(value)
    except ValueError:  # an integer beyond Python's limit of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


def settings_of(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Setting]:
    """Return the plain values among ``names`` of ``data``, texts cut to a line's length."""
    found: dict[str, Setting] = {}
    for name in names:
        value = data.get(name)
        if isinstance(value, bool) or (number(value) is not None and not isinstance(value, str)):
            found[name] = value  # type: ignore[assignment]
        elif isinstance(value, str) and value:
            found[name] = text_of(value)
    return found


def text_of(value: str) -> str:
    """Return a foreign text cut to a line's length; half a surrogate pair, which JSON can hold, is no text."""
    return value[:120].encode(errors="replace").decode()
