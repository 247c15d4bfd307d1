"""Several runs side by side: what differs between them beside the rows, and whether any row can be compared at all."""

import json
from collections.abc import Callable
from typing import Any

import pandas as pd

from bench.analysis.comparison import controls

# Of what ranks ran on and with, by column of the frame; stack_<package> comes on top.
_RAN_WITH = {
    "device": "device",
    "device_name": "device name",
    "num_threads": "threads per rank",
    "isolation": "isolation",
    "wire_model": "wire model",
    "memory_kind": "bytes counted as",
    "flops_convention": "FLOPs counted by",
}
# Of what the runner's machine and code are, in a manifest.
_MACHINE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "zerostage": lambda environment: environment["zerostage"]["version"],
    "zerostage commit": lambda environment: (
        (environment["zerostage"].get("commit") or "not known")[:12]
        + (", changed" if environment["zerostage"].get("dirty") else "")
    ),
    "platform": lambda environment: environment["platform"],
    "cores": lambda environment: environment["stack"].get("num_cores"),
    "host memory": lambda environment: f"{environment['memory_bytes'] / 2**30:.1f} GiB",
    "GPUs": lambda environment: json.dumps(environment["gpus"]) if environment["gpus"] else "none",
    "environment variables": lambda environment: json.dumps(environment["variables"], sort_keys=True),
}
# What a scenario says of all cells; its matrix is in the rows.
_NOT_SETTINGS = {"matrix", "include", "exclude", "description"}
# What rows that a table sets side by side may be configured differently in without its showing.
_NAMED = 3  # of what keeps runs from being compared, the first few
_CONFIGURED = ("zero_optimization", "deepspeed", "lora", "freeze")


def _said(what: str, values: dict[str, Any]) -> str:
    """Return ``what: value (runs), other value (runs)``."""
    found: dict[str, list[str]] = {}
    for run, value in values.items():
        found.setdefault("none" if value in (None, "") else str(value), []).append(run)
    return f"{what}: " + ", ".join(f"{value} ({', '.join(runs)})" for value, runs in found.items())


def _differ(values: dict[str, Any]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values.values()}) > 1


def _values(rows: pd.DataFrame, column: str) -> str:
    return "/".join(str(value) for value in sorted(rows[column].dropna().unique(), key=str))


def differences(frame: pd.DataFrame, manifests: dict[str, dict[str, Any]]) -> list[str]:
    """Return what differs between the runs of ``frame``, most of all that a difference of figures could come from.

    ``manifests`` are by the names that the frame's ``run`` has. What is equal is not named.
    """
    columns = {name.removeprefix("stack_"): name for name in frame.columns if name.startswith("stack_")}
    columns |= {words: name for name, words in _RAN_WITH.items() if name in frame}
    ran = frame.groupby("run", sort=False)
    kinds = {what: {str(run): _values(rows, name) for run, rows in ran} for what, name in columns.items()}
    kinds |= {what: {run: read(m["environment"]) for run, m in manifests.items()} for what, read in _MACHINE.items()}
    stack = [what for what, values in kinds.items() if _differ(values)]
    settings = {
        name: {run: m["scenario"].get(name) for run, m in manifests.items()} for name in _scenario_keys(manifests)
    }
    settings = {name: values for name, values in settings.items() if _differ(values)}
    configured = _configured(frame)
    lines = [_said(what, kinds[what]) for what in stack]
    lines += [
        _said(f"scenario's {name}", {run: json.dumps(value) for run, value in values.items()})
        for name, values in settings.items()
    ]
    lines += [line for each in configured.values() for line in each]
    if not lines:
        return ["Nothing differs between the runs' stacks, machines and settings."]
    # A setting of the scenario is a setting of many strategies, and yet one.
    count = len(stack) + len(settings.keys() | configured.keys())
    several = f"{count} things differ between the runs, and a difference of figures may come from any of them."
    return ([several] if count > 1 else ["One thing differs between the runs."]) + lines


def _scenario_keys(manifests: dict[str, dict[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for manifest in manifests.values() for name in manifest["scenario"])
    return [name for name in names if name not in _NOT_SETTINGS]


def _place(frame: pd.DataFrame) -> list[str]:
    """Return what rows of two runs must share to stand beside each other."""
    return [*controls(frame), "strategy", "world_size", "train_batch_size", "largest_batch"]


def _configured(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return by setting which strategies are called the same in two runs and are configured otherwise."""
    lines: dict[str, list[str]] = {}
    for name in (column for column in _CONFIGURED if column in frame):
        for strategy, rows in frame.groupby("strategy", sort=False):
            values = {str(run): _values(of, name) for run, of in rows.groupby("run", sort=False)}
            if len(values) > 1 and _differ(values):
                lines.setdefault(name, []).append(_said(f"{name} of {strategy}", values))
    return lines


def incomparable(frame: pd.DataFrame) -> str | None:
    """Return why no row of one run can be compared with one of another; ``None`` where one can."""
    place = _place(frame)
    if (frame.groupby(place, dropna=False)["run"].nunique() > 1).any():
        return None
    apart = []
    for name in place:
        values = {str(run): set(rows[name].dropna().map(str)) for run, rows in frame.groupby("run", sort=False)}
        if not set.intersection(*values.values()) and any(values.values()):
            shown = {run: "/".join(sorted(found)) or None for run, found in values.items()}
            apart.append(_said(name, shown))
    if len(apart) > _NAMED:
        apart = [*apart[:_NAMED], f"and in {len(apart) - _NAMED} more settings"]
    return "; ".join(apart) or "no two rows are equal in all of " + ", ".join(place)
