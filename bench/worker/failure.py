"""Put the exception that ended a rank into the words of the status taxonomy."""

import json
import time
import traceback
from pathlib import Path

import pydantic
import torch


class UnsupportedError(Exception):
    """This stack or machine lacks what the cell asks for."""


_CPU_OOM = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


def status_of(error: BaseException) -> str:
    """Return the status that ``error`` means for the cell: oom, config_error, unsupported or crashed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _CPU_OOM):
        return "oom"
    if isinstance(error, UnsupportedError):
        return "unsupported"
    if isinstance(error, pydantic.ValidationError) or type(error).__name__ == "DeepSpeedConfigError":
        return "config_error"
    return "crashed"


def write_failure(folder: Path, rank: int, activity: str, error: BaseException) -> None:
    """Leave ``failure.rank<rank>.json`` in ``folder``; the launcher's side picks the earliest of all ranks."""
    failure = {
        "rank": rank,
        "time": time.time(),
        "status": status_of(error),
        "activity": activity,
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "traceback": traceback.format_exception(error)[-20:],
    }
    (folder / f"failure.rank{rank}.json").write_text(json.dumps(failure))
