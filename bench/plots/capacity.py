"""How much memory the GPU of a row has."""

import re

from bench.hardware import gpu_names, memory_gib
from bench.plots.groups import Group
from bench.record import Record


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def device_memory_bytes(device_name: str) -> float | None:
    """Return the nominal memory of a GPU by its driver's name; ``None`` where the catalog leaves a doubt."""
    words = _words(device_name)
    if "mig" in words:  # a slice of the device has a slice of its memory
        return None
    like = [name for name in gpu_names() if _words(name)[0] in words]
    whole = [name for name in like if set(_words(name)) <= set(words)]
    found = {memory_gib(name) for name in whole or like}
    value = found.pop() if len(found) == 1 else None
    return None if value is None else value * 2**30


def capacity(record: Record) -> tuple[float, str] | None:
    """Return the bytes that a rank has room for, and what they are; ``None`` on CPU and where it is not known."""
    asked = record.cell.largest_batch
    if asked is not None and asked.memory_bytes is not None:
        return asked.memory_bytes, "budget"
    if record.cell.emulation is not None:
        return record.cell.emulation.gpu_memory_bytes, "GPU memory"
    found = device_memory_bytes(record.device_name) if record.device_name and record.device != "cpu" else None
    return None if found is None else (found, "GPU memory, nominal")


def line_text(group: Group) -> str:
    """Return what the caption says of the line."""
    found = capacity(group.first)
    if found is None and group.first.device == "cpu":
        return "No line for capacity: ranks on CPU share the host's memory."
    if found is None:
        return "No line for capacity: the catalog does not know this GPU's memory."
    return ""
