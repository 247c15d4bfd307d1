"""What is known of hardware: dense peaks and memory, each with its source and date (gpus.yaml)."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _catalog() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "gpus.yaml").read_text())["gpus"]
    return entries


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Dense peak of a device in TFLOP/s at ``dtype`` (bf16, fp16); ``None`` where the catalog has no figure.

    A device is recognised when every word of a catalog entry's ``match`` is in the name that its driver gives.
    """
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    if "mig" in words:  # a slice of the device has a slice of its peak
        return None
    for entry in _catalog():
        if words.issuperset(entry["match"]):
            value = entry["dense_tflops"].get(dtype)
            return None if value is None else float(value)
    return None


def _plain(name: str) -> str:
    return " ".join(re.split(r"[^a-z0-9]+", name.lower())).strip()


def gpu_names() -> list[str]:
    """Return the names of the GPUs whose memory is known."""
    return [entry["name"] for entry in _catalog() if "memory_gib" in entry]


def memory_gib(name: str) -> float | None:
    """Return the nominal memory of the catalog's GPU ``name`` (``h100-sxm`` will do) in GiB; ``None`` if unknown."""
    found = (entry for entry in _catalog() if _plain(entry["name"]) == _plain(name))
    value = next(found, {}).get("memory_gib")
    return None if value is None else float(value)
