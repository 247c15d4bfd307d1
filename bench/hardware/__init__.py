"""What is known of hardware: dense peaks, each with its source and date (gpus.yaml)."""

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
