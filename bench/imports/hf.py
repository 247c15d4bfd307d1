"""Files of the Hugging Face Trainer: all_results.json, train_results.json, trainer_state.json, and the printed block.

What each figure is follows transformers 5.24 (trainer_utils.speed_metrics, and its callers in trainer.py).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from bench.imports.reading import Reading, Wanted, given, number, settings_of, suspect, whole
from bench.imports.row import Given, Kind
from bench.record import Finding

_CALL = "since train() began"
# name in the file: kind, unit to add, what it is
_METRICS: dict[str, tuple[Kind, str, str]] = {
    "train_runtime": ("time", "_s", f"{_CALL}, wall time"),
    "train_samples_per_second": ("throughput", "", f"cumulative: {_CALL}, all processes"),
    "train_steps_per_second": ("throughput", "", f"cumulative: {_CALL}, optimizer steps"),
    "train_tokens_per_second": ("throughput", "", f"cumulative: {_CALL}; whose tokens: see below"),
    "train_loss": ("training", "", "mean over the steps of the call"),
    "total_flos": ("training", "", "FLOPs, all processes, 6 x tokens x parameters without embeddings"),
    "epoch": ("training", "", "epochs done"),
    "num_input_tokens_seen": ("training", "", "tokens, all processes, since the first call"),
    "train_mem_gpu_alloc_delta": ("training", "_bytes", "rank 0, end of train() less its start"),
    "train_mem_gpu_peaked_delta": ("memory", "_bytes", "rank 0, above the allocated of the end"),
}
_SPEEDS = ("train_samples_per_second", "train_steps_per_second", "train_tokens_per_second")
_HEADING = re.compile(r"\*{3,5} ?[Tt]rain (?:metrics|results) ?\*{3,5}[^\n]*\n")
_LINE = re.compile(r"(\w+) *= *(\S.*?) *$")
_LONGEST_LINE = 300
_CLOCK = re.compile(r"(?:(\d{1,6}) days?, )?(\d{1,2}):(\d\d):(\d\d(?:\.\d+)?)")

CUMULATIVE = (
    "Trainer speeds are over the whole train() call: first steps, compilation, evaluation, logging and saving are in "
    "the time; in transformers 4 a resumed run also counts the steps before it"
)
TOKENS = (
    "train_tokens_per_second of a result file (transformers 4, include_tokens_per_second) counts the batches of one "
    "process with their padding; in a log entry it is of all processes, and whether padding counts is not said"
)
NO_FLOS = (
    "total_flos is 0: under ZeRO-3 a partitioned parameter has no elements where the Trainer counts them "
    "(num_parameters in modeling_utils.py)"
)


def _speed_findings(metrics: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with the speeds of ``metrics``; they are rounded to three decimals."""
    found = [suspect(CUMULATIVE)] if any(number(metrics.get(name)) is not None for name in _SPEEDS) else []
    if number(metrics.get("train_tokens_per_second")) is not None:
        found.append(suspect(TOKENS))
    for name in _SPEEDS:
        value = number(metrics.get(name))
        if value == 0:
            found.append(suspect(f"{name} is 0: the Trainer rounds to three decimals, which hold nothing of it"))
        elif value is not None and value > 0 and 0.0005 / value >= 0.01:
            text = f"{name} is rounded to three decimals: {value} is exact to {0.0005 / value:.0%}"
            found.append(suspect(text))
    if "total_flos" in metrics and number(metrics["total_flos"]) == 0:
        found.append(suspect(NO_FLOS))
    return found


def _figures(metrics: Mapping[str, Any]) -> tuple[list[Given], list[Finding]]:
    wanted: list[Wanted] = [
        (kind, name + unit, metrics[name], what)
        for name, (kind, unit, what) in _METRICS.items()
        # A speed that rounding took away is no figure, nor are FLOPs that were not counted.
        if name in metrics and not (name in (*_SPEEDS, "total_flos") and number(metrics[name]) == 0)
    ]
    return given(wanted)


def is_results(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a result file of the Trainer that tells of training."""
    return "train_runtime" in data or any(name in data for name in _SPEEDS)


def results(data: Mapping[str, Any]) -> Reading:
    """Read all_results.json or train_results.json: written when train() has returned."""
    figures, refused = _figures(data)
    return Reading("HF results", figures, [*_speed_findings(data), *refused], status="completed")


def is_state(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a trainer_state.json."""
    return isinstance(data.get("log_history"), list) and "global_step" in data


def state(data: Mapping[str, Any]) -> Reading:
    """Read trainer_state.json: a checkpoint's has no speeds, that of a finished run has them in its last entry."""
    entries = [entry for entry in data["log_history"] if isinstance(entry, dict)]
    final = next((entry for entry in reversed(entries) if "train_loss" in entry and "train_runtime" in entry), None)
    timed = next((entry for entry in reversed(entries) if "train_tokens_per_second" in entry), {})
    metrics = {name: data.get(name) for name in ("total_flos", "epoch") if name in data}
    metrics |= {name: timed[name] for name in ("train_tokens_per_second", "train_runtime") if name in timed}
    seen = data.get("num_input_tokens_seen")
    metrics |= ({"num_input_tokens_seen": seen} if seen else {}) | (final or {})
    logged = [entry for entry in entries if "loss" in entry]
    figures, refused = _figures(metrics)
    last = logged[-1] if logged else {}
    more, also_refused = given(
        [
            ("training", "global_step", data["global_step"], "optimizer steps done"),
            ("training", "loss", last.get("loss"), "last entry: mean since the entry before"),
            ("training", "grad_norm", last.get("grad_norm"), "last entry: of that step, before clipping"),
        ]
    )
    done, most = whole(data["global_step"]), whole(data.get("max_steps"))
    broken = [whole(entry.get("step")) or "?" for entry in logged if not number(entry["loss"])]
    findings = [*_speed_findings(metrics), *refused, *also_refused]
    if broken:
        text = f"{len(broken)} of {len(logged)} logged losses are 0 or not a number, first at step {broken[0]}"
        findings.append(suspect(text, "training"))
    return Reading(
        "HF trainer state",
        more + figures,
        findings,
        settings_of(data, ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps")),
        status="completed" if final or (done is not None and done == most) else None,
    )


def _value(text: str) -> object:
    """Return what a value of the printed block means: seconds of a clock, else its number."""
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = clock.groups()
        whole_days = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes))
        return round(whole_days.total_seconds() + float(seconds), 2)
    return text


def block(text: str) -> Reading | None:
    """Read the last ``***** train metrics *****`` block of a log, ``None`` without one.

    Units that the Trainer adds for people: ``GF`` is 2^30 FLOPs, ``MB`` 2^20 bytes; both are rounded down.
    """
    headings = list(_HEADING.finditer(text))
    metrics: dict[str, object] = {}
    for line in text[headings[-1].end() :].splitlines() if headings else ():
        found = _LINE.search(line) if len(line) < _LONGEST_LINE else None
        if found is None:
            break
        metrics[found[1]] = _value(found[2])
    if not is_results(metrics):
        return None
    figures, refused = _figures({name: value for name, value in metrics.items() if not _unit(value)})
    with_unit: list[Wanted] = []
    for name, value in metrics.items():
        if name in _METRICS and (unit := _unit(value)):
            kind, _, what = _METRICS[name]
            with_unit.append((kind, f"{name}_{unit[1]}", unit[0], what))
    more, also_refused = given(with_unit)
    findings = [*_speed_findings(metrics), *refused, *also_refused]
    return Reading("HF train metrics", figures + more, findings, status="completed")


def _unit(value: object) -> tuple[str, str] | None:
    """Return number and unit of ``12345GF`` or ``693MB``."""
    found = re.fullmatch(r"(-?\d+)(GF|MB)", value) if isinstance(value, str) else None
    return (found[1], {"GF": "x2^30", "MB": "mib"}[found[2]]) if found else None
