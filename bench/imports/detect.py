"""Which parser reads a file: decided by what is in it, never by its name."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from bench.errors import ImportedFileError
from bench.imports import autotuner, comms_log, deepcompile, deepspeed_log, hf, llamafactory
from bench.imports.reading import Reading

ACCEPTED = (
    "accepted are: all_results.json, train_results.json, trainer_state.json and printed train metrics of the HF "
    "Trainer; trainer_log.jsonl of LLaMA-Factory; DeepSpeed logs and comms summaries; metrics.json and exp.json of "
    "DeepSpeed's autotuner; result lines of its deepcompile benchmark (docs/imports.md)"
)
# Gives the text of a file that lies beside the one that is read, "" where there is none.
Beside = Callable[[str], str]


def decoded(content: bytes) -> str:
    """Return the text of a file; a log may hold bytes that are no text.

    Raises:
        ImportedFileError: it is empty or binary.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # as PowerShell redirects
        text = content.decode("utf-16", errors="replace")
    elif b"\0" in content:
        raise ImportedFileError(f"a binary file; {ACCEPTED}")
    else:
        text = content.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise ImportedFileError(f"an empty file; {ACCEPTED}")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar goes back on its line


def recognised(text: str, beside: Beside) -> list[Reading]:
    """Return what a file tells of: one reading per run. Empty where another file beside it tells of the same.

    Raises:
        ImportedFileError: it is none of the accepted files.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if readings := _from_text(text):
            return readings
        looks = f"torn or damaged JSON ({error})" if text.lstrip()[0] in "{[" else "text without a line that is known"
        raise ImportedFileError(f"{looks:.300}; {ACCEPTED}") from None
    if not isinstance(data, dict):
        raise ImportedFileError(f"JSON, but not an object; {ACCEPTED}")
    found = _from_object(data, text, beside)
    if found is not None:
        return found
    keys = ", ".join(f"'{key[:30]}'" for key in list(data)[:5]) or "none"
    raise ImportedFileError(f"a JSON object with keys {keys.encode('unicode_escape').decode()}; {ACCEPTED}")


def _from_object(data: dict[str, Any], text: str, beside: Beside) -> list[Reading] | None:
    """Return the readings of a JSON object, ``None`` where it is none of the accepted ones."""
    if hf.is_state(data):
        return [hf.state(data)]
    if autotuner.is_metrics(data):
        experiment, ds_config = beside("exp.json"), beside("ds_config.json")
        log = "".join(map(beside, autotuner.LOGS))
        identity = "\n".join((text, experiment, ds_config))  # failed experiments have equal metrics
        return [autotuner.metrics(data, _object(experiment), _object(ds_config), log, identity)]
    if autotuner.is_experiment(data):
        if autotuner.is_metrics(_object(beside("metrics.json"))):
            return []
        return [autotuner.failed_experiment(data, "".join(map(beside, autotuner.LOGS)), text)]
    if comms_log.is_summary(data):
        reading = comms_log.summary(data)
    elif hf.is_results(data):
        reading = hf.results(data)
    else:
        reading = llamafactory.trainer_log(text)  # a log of one line is an object too
    return [reading] if reading else None


def _object(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _from_text(text: str) -> list[Reading]:
    if lines := deepcompile.result_lines(text):
        return lines
    if entries := llamafactory.trainer_log(text):
        return [entries]
    parts = [part for part in (deepspeed_log.log_text(text), comms_log.comms(text), hf.block(text)) if part]
    if not parts:
        return []
    # One log is one run, whichever of its programs printed what. A failure comes after what was printed before it.
    first = parts[0]
    return [
        Reading(
            ", ".join(part.format for part in parts),
            [figure for part in parts for figure in part.as_given],
            [finding for part in parts for finding in part.findings],
            first.settings,
            first.status or parts[-1].status,
            first.reason,
        )
    ]
