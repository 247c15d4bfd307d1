"""The sections ``offload_optimizer`` and ``offload_param``, cleaned."""

from typing import Any

from bench.configs.keys import OFFLOAD_DEVICES, OFFLOAD_FRACTIONS, OFFLOAD_SWITCHES, OFFLOAD_WHOLE
from bench.configs.values import is_auto, mapping, real, shown, switch, whole
from bench.errors import nearest


def offload(key: str, value: Any, notes: list[str], unresolved: list[str]) -> dict[str, Any] | None:
    """Return the section with each value of its type; ``None`` where it names no device, or the device ``none``.

    Raises:
        ValueError: a key or value is wrong.
    """
    if value is None:
        return None
    name = f"zero_optimization.{key}"
    section = mapping(name, value)
    valid = {"device", "nvme_path"} | OFFLOAD_WHOLE[key] | OFFLOAD_SWITCHES[key] | OFFLOAD_FRACTIONS[key]
    cleaned: dict[str, Any] = {}
    for part, given in section.items():
        if part not in valid:
            words = ", ".join(sorted(valid))
            raise ValueError(f"'{name}.{part}' is no key of DeepSpeed{nearest(part, valid)}; valid: {words}")
        if is_auto(given):
            if part == "device":
                unresolved.append(f"{name}.device")
            else:
                notes.append(f"{name}.{part} auto -> DeepSpeed's default")
        elif given is not None or part not in ("device", "nvme_path"):
            cleaned[part] = _value(key, f"{name}.{part}", part, given)
    device = cleaned.get("device", "none")
    if device == "nvme" and not cleaned.get("nvme_path"):
        raise ValueError(f"'{name}': device nvme needs nvme_path, a folder on the NVMe drive")
    if device == "cpu":
        cleaned.pop("nvme_path", None)
    if section and "device" not in section:
        notes.append(f"{name} names no device: no offload, as DeepSpeed reads it")
    return None if device == "none" else cleaned


def _value(key: str, name: str, part: str, given: Any) -> Any:
    if part in OFFLOAD_WHOLE[key]:
        return whole(name, given)
    if part in OFFLOAD_SWITCHES[key]:
        return switch(name, given)
    if part in OFFLOAD_FRACTIONS[key]:
        fraction = real(name, given)
        if fraction > 1:
            raise ValueError(f"'{name}' takes a number from 0 to 1 (got {shown(given)})")
        return fraction
    if not isinstance(given, str) or (part == "device" and given not in OFFLOAD_DEVICES):
        takes = ", ".join(OFFLOAD_DEVICES) if part == "device" else "a path"
        raise ValueError(f"'{name}' takes {takes} (got {shown(given)}){nearest(given, OFFLOAD_DEVICES)}")
    return given
