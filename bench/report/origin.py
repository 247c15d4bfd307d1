"""Where the rows of a run come from, in sentences that stand above every figure."""

from collections.abc import Sequence
from typing import Any

from bench.analysis.footers import NO_MULTI_GPU, multi_gpu
from bench.record import Record
from bench.runs import Run


def _count(number: int, kind: str, records: Sequence[Record] = ()) -> str:
    """Return how many rows there are of a kind, and of ``records`` how many have figures, where not all have."""
    done = sum(record.status == "completed" for record in records)
    some = "" if done == len(records) else f" ({done or 'none'} completed)"
    return f"{number} {kind} row{'' if number == 1 else 's'}{some}"


def _span(records: Sequence[Record]) -> str:
    times = sorted(record.launch.started_at for record in records if record.launch)
    if not times:
        return ""
    first, last = (time[:16].replace("T", " ") for time in (times[0], times[-1]))
    same_day = first[:10] == last[:10]
    zone = " UTC" if times[0].endswith(("+00:00", "Z")) else ""
    return first + ("" if first == last else f" to {last[11:] if same_day else last}") + zone


def _places(records: Sequence[Record]) -> str:
    places = [" ".join(filter(None, [r.device, r.device_name and f"({r.device_name})"])) for r in records]
    return ", ".join(dict.fromkeys(places))


def _versions(records: Sequence[Record]) -> str:
    """Return the versions of what ran, all of a package where there are several."""
    found: dict[str, list[str]] = {}
    for record in records:
        for package, version in record.stack.items():
            if version not in found.setdefault(package, []):
                found[package].append(version)
    return ", ".join(f"{package} {' and '.join(versions)}" for package, versions in found.items())


def provenance(run: Run) -> list[str]:
    """Return what a reader must know of the kinds of number on the page before reading one."""
    measured = [record for record in run.records if record.provenance == "measured"]
    emulated = [record for record in run.records if record.provenance == "emulated"]
    said = []
    if measured:
        places = [_count(len(measured), "measured", measured), f"on {_places(measured)}", _span(measured)]
        said.append(f"{', '.join(filter(None, places))}.")
    if emulated:
        said.append(
            f"{_count(len(emulated), 'emulated', emulated)}: DeepSpeed's own code ran as one rank of N in one process, "
            "on tensors without memory. Peak memory and traffic are that rank's; nothing was timed."
        )
    if run.imported:
        said.append(
            f"{_count(len(run.imported), 'imported')}: figures of other programs, as given, compared with none."
        )
    said += [f"With {versions}."] if (versions := _versions(run.records)) else []
    on_gpus = any(multi_gpu(r.provenance, r.device, r.cell.world_size, r.status) for r in run.records)
    return [*said, *([] if on_gpus else [NO_MULTI_GPU])]


def not_known(run: Run) -> list[str]:
    """Return what the emulated rows of a run cannot know, in a sentence; none where there are no such rows."""
    rows = [record.emulation.not_known for record in run.records if record.emulation]
    said = list(dict.fromkeys(each for row in rows for each in row))
    return [f"Emulated rows cannot know: {'; '.join(said)}."] if said else []


def stack(run: Run) -> list[tuple[str, str]]:
    """Return versions and machine of the run, flat, as its manifest keeps them."""
    return [] if run.manifest is None else _flat(run.manifest["environment"], "")


def _flat(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, each in value.items() for pair in _flat(each, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list):
        if any(isinstance(each, dict) for each in value):
            return [pair for number, each in enumerate(value) for pair in _flat(each, f"{name}.{number}")]
        return [(name, ", ".join(map(str, value)))] if value else []
    return [] if value is None else [(name, f"{value:,}" if type(value) is int else str(value))]
