"""What became of a launch, in one word and a reason. Files decide; an exit status alone never means success."""

import json
import signal
from pathlib import Path
from typing import Any

from bench.record import Failure, Status


def _first_failure(work: Path) -> dict[str, Any] | None:
    failures = []
    for path in work.glob("failure.rank*.json"):
        try:
            failures.append(json.loads(path.read_text()))
        except ValueError:  # the rank died while writing it
            continue
    return min(failures, key=lambda failure: failure["time"], default=None)


def _signal_name(status: int) -> str | None:
    """Return the signal that ended a rank, if one did."""
    # The launcher passes on a rank's negative exit status as that number modulo 256.
    try:
        # 255 is far more often a plain exit(-1) than a rank ended by SIGHUP.
        return None if status == 255 else signal.Signals(256 - status if status > 128 else -status).name
    except ValueError:
        return None


def judge_launch(work: Path, exit_status: int | None, timeout_s: float) -> tuple[Status, str | None, Failure | None]:
    """Return status, reason and first failure of a launch whose ranks wrote into ``work``.

    ``exit_status`` is the launcher's, ``None`` when it was killed at its time-out.
    """
    first = _first_failure(work)
    failure = (
        Failure(**{key: first[key] for key in ("rank", "activity", "type", "message", "traceback")}) if first else None
    )
    if exit_status is None:
        return "timeout", f"not done after {timeout_s:g} s, killed", failure
    name = _signal_name(exit_status)
    if first is not None:
        lines = first["message"].strip().splitlines() or [""]
        # A rank that is killed leaves no word; what its peers then say is only the consequence.
        cause = f"a rank was killed by {name}; then " if name else ""
        reason = f"{cause}rank {first['rank']}, {first['activity']}: {first['type']}: {lines[0]}"
        return first["status"], reason, failure
    if exit_status != 0:
        killer = " (as the kernel does when memory runs out)" if name == "SIGKILL" else ""
        cause = f"killed by {name}{killer}" if name else f"exit status {exit_status}"
        return "crashed", f"a rank ended without a word: {cause}; see the log", None
    if not (work / "result.json").is_file():
        return "silent_exit", "exit status 0, but rank 0 left no result", None
    return "completed", None, None
