"""fp16 and bf16 sections -> the dtype that a file asks for, and the parts of the section that change training."""

from dataclasses import dataclass, field
from typing import Any

from bench.configs.keys import BF16_KEYS, FP16_KEYS
from bench.configs.values import is_auto, mapping, real, shown, switch, whole
from bench.errors import nearest

SUITE_DTYPE = "bf16"  # what a scenario that says nothing trains in
_WHOLE = ("hysteresis", "initial_scale_power", "loss_scale_window", "min_loss_scale")
# Where DeepSpeed's fp16 section leaves nothing out: what these keys are anyway (runtime/precision_config.py).
_DEFAULTS: dict[str, dict[str, Any]] = {
    "fp16": {
        "auto_cast": False,
        "consecutive_hysteresis": False,
        "fp16_master_weights_and_grads": False,
        "hysteresis": 2,
        "initial_scale_power": 16,
        "loss_scale": 0.0,
        "loss_scale_window": 1000,
        "min_loss_scale": 1,
    },
    "bf16": {
        "bf16_master_weights_and_grads": False,
        "bf16_optimizer_states": False,
        "check_grad_overflow": True,
        "immediate_grad_update": False,
    },
}


@dataclass
class Precision:
    """``section``: the whole fp16 or bf16 section where it holds more than DeepSpeed's defaults, to be passed on."""

    dtype: str
    section: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    impossible: str | None = None


def precision(content: dict[str, Any], beside: str | None, asked: str | None) -> Precision:
    """Settle the dtype: what the file says, else ``beside`` (the surrounding file), else ``asked`` (the scenario).

    Raises:
        ValueError: a section is wrong, or both are enabled.
    """
    notes: list[str] = []
    if "bf16" in content and "bfloat16" in content:
        raise ValueError("'bf16' and 'bfloat16' are one section; keep 'bf16'")
    if "bfloat16" in content:
        notes.append("the section bfloat16 is deprecated: read as bf16")
    sections = {
        "fp16": _section("fp16", content.get("fp16"), FP16_KEYS),
        "bf16": _section("bf16", _without_loss_scale(content.get("bf16", content.get("bfloat16")), notes), BF16_KEYS),
    }
    # True, False, "auto", or None where the file has no such section.
    enabled = {name: None if section is None else section.get("enabled", False) for name, section in sections.items()}
    if enabled["fp16"] is True and enabled["bf16"] is True:
        raise ValueError("'fp16.enabled' and 'bf16.enabled' are both true; DeepSpeed refuses that, keep one")
    wanted = beside or asked
    if None not in (beside, asked) and beside != asked:
        notes.append(f"{beside} is the configuration's, over the scenario's {asked}")
    dtype = _dtype(enabled, wanted, notes)
    if dtype is None:  # transformers refuses this too, as a mismatch
        reason = f"{wanted}.enabled is false in the file, and {wanted} is asked for"
        return Precision("fp32", notes=notes, impossible=reason)
    result = Precision(dtype, notes=notes)
    section = sections.get(dtype)
    if section is not None:
        _pass_on(result, section)
    return result


def _without_loss_scale(section: Any, notes: list[str]) -> Any:
    """Leave fp16's keys out of a bf16 section, where LLaMA-Factory and axolotl have had them."""
    if not isinstance(section, dict):
        return section
    copied = [key for key in section if key in FP16_KEYS - BF16_KEYS]
    if copied:
        notes.append(
            f"bf16.{', bf16.'.join(copied)}: not used; these are keys of fp16, older releases of DeepSpeed pass over "
            "them and 0.19.8 refuses them"
        )
    return {key: value for key, value in section.items() if key not in copied}


def _section(name: str, value: Any, valid: frozenset[str]) -> dict[str, Any] | None:
    if value is None:
        return None
    cleaned: dict[str, Any] = {}
    for key, given in mapping(name, value).items():
        full = f"{name}.{key}"
        if key not in valid:
            raise ValueError(f"'{full}' is no key of DeepSpeed{nearest(key, valid)}; valid: {', '.join(sorted(valid))}")
        if is_auto(given):
            if key == "enabled":
                cleaned[key] = "auto"  # any other: DeepSpeed drops it and takes its default
        elif key in _WHOLE:
            cleaned[key] = whole(full, given)
        elif key == "loss_scale":
            cleaned[key] = real(full, given)
        else:
            cleaned[key] = switch(full, given)
    return cleaned


def _dtype(enabled: dict[str, Any], wanted: str | None, notes: list[str]) -> str | None:
    """Return the dtype; ``None`` where the file leaves one open and the one that is asked for not."""
    for name in ("fp16", "bf16"):
        if enabled[name] is True:
            if wanted not in (None, name):
                notes.append(f"{name}.enabled is true: {name}, over the {wanted} asked for")
            return name
    open_ = [name for name in ("bf16", "fp16") if enabled[name] == "auto"]
    if not open_ and all(value is None for value in enabled.values()):
        # accelerate and transformers add the section that mixed_precision or bf16/fp16 asks for.
        if wanted is None:
            notes.append("neither fp16 nor bf16 is in the file: fp32, DeepSpeed's default")
        return wanted or "fp32"
    if not open_:
        other = [name for name in ("bf16", "fp16") if enabled[name] is None]
        if wanted in other:
            return str(wanted)
        if wanted not in (None, "fp32"):
            notes.append(f"{wanted}.enabled is false: fp32, over the {wanted} asked for")
        return "fp32"
    if wanted is None:
        chosen = SUITE_DTYPE if SUITE_DTYPE in open_ else open_[0]
        notes.append(f"{chosen}.enabled auto -> true: no dtype is asked for, and {chosen} is the suite's")
        return chosen
    if wanted in open_:
        notes.append(f"{wanted}.enabled auto -> true, the {wanted} asked for")
    elif wanted != "fp32" and enabled[wanted] is False:
        return None
    return wanted


def _pass_on(result: Precision, section: dict[str, Any]) -> None:
    """Keep the section where it changes something, and say what fp16's loss scale does to the first steps."""
    name = result.dtype
    kept = {key: value for key, value in section.items() if key != "enabled" and value != _DEFAULTS[name][key]}
    if kept:
        result.section = {"enabled": True} | kept
    if name == "fp16":
        dynamic = section.get("loss_scale", 0.0) == 0
        power = section.get("initial_scale_power", 16)
        if dynamic and power > 16:
            result.notes.append(
                f"fp16.initial_scale_power {power}: the loss scale starts at 2**{power}, so that the first steps "
                "overflow and are skipped; a skipped step is faster than a real one "
                "(deepspeedai/DeepSpeed#931, huggingface/transformers#14531)"
            )
        for key in ("loss_scale_window", "min_loss_scale"):
            if dynamic and section.get(key, 1) <= 0:
                raise ValueError(f"'fp16.{key}' takes a whole number from 1 while the loss scale is dynamic "
                                 f"(got {shown(section[key])})")  # fmt: skip
