"""Put the exception that ended a rank into the words of the status taxonomy."""

import json
import time
import traceback
from pathlib import Path
from typing import Any

import pydantic

from bench import messages
from bench.hang import phase
from bench.record import Status

# Whatever is raised in here, an op was being compiled or loaded.
_BUILDERS = ("torch/utils/cpp_extension.py", "deepspeed/ops/op_builder/builder.py")

# No torch here: a rank that cannot import it must still be able to say so.


class UnsupportedError(Exception):
    """This stack or machine lacks what the cell asks for."""


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return ``error`` and what it was raised from or while handling, outermost first."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def status_of(error: BaseException) -> Status:
    """Return the status that ``error`` means for the cell: the first in its chain that is more than ``crashed``."""
    for each in _chain(error):
        if any(frame.filename.endswith(_BUILDERS) for frame in _frames(each)):
            return "build_error"
        if isinstance(each, pydantic.ValidationError):
            return "config_error"
        kind = "MemoryError" if isinstance(each, MemoryError) else type(each).__name__
        if (status := messages.status_of(kind, str(each))) != "crashed":
            return status
    return "crashed"


def failure(rank: int, activity: str, error: BaseException) -> dict[str, Any]:
    """Return what is known of the exception: the fields of bench.record.Failure, with ``time`` and ``status``.

    ``phase`` is that of the training step, or ``init`` while model and engine are built.
    """
    functions = [frame.name for frame in _frames(error)]
    sizes = (messages.requested_bytes(str(each)) for each in _chain(error))
    return {
        "rank": rank,
        "time": time.time(),
        "status": status_of(error),
        "activity": activity,
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "traceback": traceback.format_exception(error)[-20:],
        "phase": phase(functions) or ("init" if activity.startswith("building") else None),
        "requested_bytes": next((size for size in sizes if size is not None), None),
    }


def write_failure(folder: Path, rank: int, activity: str, error: BaseException) -> None:
    """Leave ``failure.rank<rank>.json`` in ``folder``; the launcher's side picks the earliest of all ranks."""
    (folder / f"failure.rank{rank}.json").write_text(json.dumps(failure(rank, activity, error)))
