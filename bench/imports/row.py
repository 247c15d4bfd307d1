"""The imported row: what somebody else's file says, in its own words, with what is known to be wrong with such figures.

It is no ``bench.record.Record``: a file from elsewhere does not know the settings of a cell, so nothing that compares
cells can ever be handed one.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bench import json_text
from bench.errors import StoreError
from bench.record import Finding, Status, Validity

IMPORTED_VERSION = 1
Kind = Literal["throughput", "time", "memory", "traffic", "training"]
Setting = bool | int | float | str


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Given(_Model):
    """One figure as a file gives it, not converted. ``name`` is the file's, with the unit as its suffix.

    ``what`` is what the figure covers: the time, the ranks, and how it was taken.
    """

    kind: Kind
    name: str
    value: int | float
    what: str


class ImportedRow(_Model):
    """One run that a file tells of. ``source`` is the base name of the file, ``sha256`` that of its content.

    ``status`` is ``None`` where the file does not say how the run ended. ``settings``: what it says that ran.
    """

    imported_version: int = IMPORTED_VERSION
    row_id: str
    provenance: Literal["imported"] = "imported"
    source: str
    sha256: str
    format: str
    imported_at: str
    status: Status | None
    reason: str | None = None
    validity: Validity
    findings: list[Finding]
    settings: dict[str, Setting]
    as_given: list[Given]


def parse_row(text: str, name: str) -> ImportedRow:
    """Read a stored row; ``name`` is its file, for the messages.

    Raises:
        StoreError: the text is torn, is not an imported row, or a newer zerostage wrote it.
    """
    remedy = "move the file away and import its source again"
    try:
        data = json_text.read(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name}: torn or damaged imported row ({error}); {remedy}") from None
    version = data.get("imported_version") if isinstance(data, dict) else None
    if type(version) is int and version > IMPORTED_VERSION:
        raise StoreError(
            f"{name}: imported_version {version} was written by a newer zerostage, this one reads up to "
            f"{IMPORTED_VERSION}; upgrade zerostage"
        )
    try:
        return ImportedRow.model_validate(data)
    except ValidationError as error:
        detail = "; ".join(f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()[:3])
    raise StoreError(f"{name}: damaged imported row ({detail}); {remedy}")
