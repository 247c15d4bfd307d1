"""What the readers of other tools' files hand on, and the file that such a file points to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.configs.parse import read_mapping


@dataclass
class Translated:
    """A DeepSpeed configuration, and what the file around it says besides. ``file``: the name of its own file."""

    content: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    file: str | None = None


def pointed_at(path: Path, key: str, value: str) -> dict[str, Any]:
    """Read the file that ``key`` of ``path`` names: beside that file, else in the working directory.

    Raises:
        ValueError: it is at neither.
        ScenarioError: it is wrong.
    """
    if "\0" in value or not value.strip():
        raise ValueError(f"'{key}' takes a path (got {value!r})")
    named = Path(value).expanduser() if value.startswith("~/") else Path(value)
    places = [named] if named.is_absolute() else [path.parent / named, named]
    for place in places:
        try:
            if place.is_file():
                return read_mapping(place)
        except OSError:  # a name too long for the file system
            continue
    where = "it does not exist" if named.is_absolute() else "neither beside this file nor in the working directory"
    raise ValueError(f"'{key}': {value!r} is not found: {where}")
