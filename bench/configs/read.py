"""Stub until the reader lands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ConfigFile:
    """A configuration."""

    name: str
    source: str
    content: dict[str, Any]
    settings: dict[str, Any]
    notes: tuple[str, ...]


def read_configs(path: Path) -> list[ConfigFile]:
    """Read."""
    raise NotImplementedError(path)
