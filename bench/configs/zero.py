"""The ``zero_optimization`` section: spellings mapped, numbers made whole, every ``auto`` resolved."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.configs.keys import (
    ZERO_ALIASES,
    ZERO_CPU_OFFLOAD,
    ZERO_KEYS,
    ZERO_NO_FIGURE,
    ZERO_OFFLOAD,
    ZERO_PINNED,
    ZERO_SECTIONS,
    ZERO_SWITCHES,
    ZERO_WHOLE,
)
from bench.configs.offload import offload
from bench.configs.values import is_auto, mapping, real, shown, switch, whole
from bench.errors import nearest
from bench.zero.applicability import KEYS, ignored_notes

# What transformers resolves from the model's hidden size h (integrations/deepspeed.py, trainer_config_finalize). It
# does so for reduce_bucket_size at every stage, for the others at stage 3 only.
_FORMULAS: dict[str, tuple[Callable[[int], int], str]] = {
    "reduce_bucket_size": (lambda h: h * h, "{h} x {h}"),
    "stage3_prefetch_bucket_size": (lambda h: int(0.9 * h * h), "int(0.9 x {h} x {h})"),
    "stage3_param_persistence_threshold": (lambda h: 10 * h, "10 x {h}"),
}
_ONLY_STAGE_3 = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")


@dataclass
class Section:
    """What became of the section. ``unresolved``: keys whose ``auto`` nobody can resolve."""

    stage: int
    keys: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    impossible: str | None = None


def zero_section(content: dict[str, Any], hidden_size: int | None) -> Section:
    """Resolve ``content["zero_optimization"]`` as DeepSpeed and transformers do.

    Raises:
        ValueError: a key or value in it is wrong.
    """
    given = content.get("zero_optimization", {})
    if isinstance(given, bool):
        return _deprecated(content, given)
    section = mapping("zero_optimization", given)
    _check_keys(section)
    zero = Section(_stage(section))
    if "stage" not in section:
        zero.notes.append("zero_optimization.stage is not set: stage 0, DeepSpeed's default")
    elif is_auto(section["stage"]):
        zero.unresolved.append("zero_optimization.stage")
    for key, value in _renamed(section, zero).items():
        _take(zero, key, value, hidden_size)
    _check_stage(zero)
    known = KEYS.keys() & zero.keys.keys()
    if "offload_optimizer" in zero.keys:
        known -= {"ignore_unused_parameters"}  # the one that is read with offload alone
    zero.notes += ignored_notes(known, [f"z{zero.stage}"])
    return zero


def _deprecated(content: dict[str, Any], enabled: bool) -> Section:
    """``zero_optimization: true``, as ``read_zero_config_deprecated`` reads it (runtime/zero/config.py)."""
    zero = Section(int(enabled))
    if enabled:
        zero.keys["allgather_bucket_size"] = whole("allgather_size", content.get("allgather_size", 500_000_000))
    written = str(enabled).lower()
    zero.notes.append(f"zero_optimization: {written} is deprecated: stage {zero.stage}, as DeepSpeed reads it")
    return zero


def _check_keys(section: dict[str, Any]) -> None:
    valid = ZERO_KEYS - {"legacy_stage1"}
    problems = [f"'zero_optimization.{key}' is no key of DeepSpeed{nearest(key, valid)}" for key in section
                if key not in ZERO_KEYS]  # fmt: skip
    if problems:
        raise ValueError("; ".join(problems))


def _stage(section: dict[str, Any]) -> int:
    stage = section.get("stage", 0)
    if is_auto(stage):
        return 0
    if isinstance(stage, bool):
        raise ValueError(f"'zero_optimization.stage' takes 0, 1, 2 or 3 (got {shown(stage)})")
    if isinstance(stage, list):
        raise ValueError("'zero_optimization.stage' is a list: read the file with read_configs, which expands it")
    try:
        number = whole("zero_optimization.stage", stage)
    except ValueError:
        number = 4
    if number > 3:
        raise ValueError(f"'zero_optimization.stage' takes 0, 1, 2 or 3 (got {shown(stage)})")
    return number


def _renamed(section: dict[str, Any], zero: Section) -> dict[str, Any]:
    """Return the section in the current spellings, without ``stage`` and the switches of CPU offload's early days."""
    result: dict[str, Any] = {}
    for key, value in section.items():
        name = ZERO_ALIASES.get(key, key)
        if name in result:
            names = " and ".join(f"'{each}'" for each in section if ZERO_ALIASES.get(each, each) == name)
            raise ValueError(f"'zero_optimization.{name}' is given twice, as {names}; keep one")
        if key != name and "fp16" in key:
            zero.notes.append(f"zero_optimization.{key} is deprecated: read as {name}")
        if name in ZERO_CPU_OFFLOAD:
            _cpu_offload(section, key, result, zero)
        elif name == ZERO_PINNED:
            zero.notes.append(
                f"zero_optimization.{ZERO_PINNED} is deprecated and DeepSpeed no longer reads it; pin_memory belongs "
                "in offload_optimizer and offload_param"
            )
        elif name != "stage":
            result[name] = value
    return result


def _cpu_offload(section: dict[str, Any], key: str, result: dict[str, Any], zero: Section) -> None:
    new, value = ZERO_CPU_OFFLOAD[key], section[key]
    if new in section or new in result:
        raise ValueError(f"'zero_optimization.{key}' and '{new}' together: DeepSpeed refuses both; keep '{new}'")
    if value is None or not switch(f"zero_optimization.{key}", value):
        zero.notes.append(f"zero_optimization.{key} is deprecated and off")
        return
    result[new] = {"device": "cpu"}
    zero.notes.append(f"zero_optimization.{key} is deprecated: read as {new}: {{device: cpu}}")


def _take(zero: Section, key: str, value: Any, hidden_size: int | None) -> None:
    """Put one key, in its current spelling, where it belongs."""
    name = f"zero_optimization.{key}"
    if key in _FORMULAS and is_auto(value):
        _resolve_size(zero, key, hidden_size)
    elif key in ZERO_NO_FIGURE:
        if not is_auto(value) and switch(name, value) and key == "legacy_stage1":
            zero.impossible = "legacy_stage1: DeepSpeed no longer has the old ZeRO stage 1"
        zero.notes.append(f"{name}: not used, for {ZERO_NO_FIGURE[key]}")
    elif is_auto(value):
        zero.notes.append(f"{name} auto -> DeepSpeed's default (transformers resolves no such key, DeepSpeed drops it)")
    elif key in ZERO_OFFLOAD:
        cleaned = offload(key, value, zero.notes, zero.unresolved)
        if cleaned is not None:
            zero.keys[key] = cleaned
    elif key == "zenflow":
        if value is not None:
            zero.impossible = "zenflow updates parameters later than the other strategies; the suite cannot compare it"
    elif key in ZERO_SECTIONS:
        zero.keys[key] = _part(key, name, mapping(name, value))
    elif key in ZERO_SWITCHES:
        if not (key == "overlap_comm" and value is None):  # null: the stage's own default
            zero.keys[key] = switch(name, value)
    else:
        zero.keys[key] = whole(name, value, ZERO_WHOLE[key])
        if isinstance(value, str):
            zero.notes.append(f"{name}: the text {value!r} is read as {zero.keys[key]:,}; DeepSpeed takes numbers")


def _part(key: str, name: str, section: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part, value in section.items():
        if part not in ZERO_SECTIONS[key]:
            valid = ZERO_SECTIONS[key]
            raise ValueError(f"'{name}.{part}' is no key of DeepSpeed{nearest(part, valid)}; valid: {', '.join(valid)}")
        if key == "leaf_module":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ValueError(f"'{name}.{part}' takes a list of names (got {shown(value)})")
            result[part] = list(value)
        else:
            result[part] = whole(f"{name}.{part}", value) if part == "reset_T" else real(f"{name}.{part}", value)
    return result


def _resolve_size(zero: Section, key: str, hidden_size: int | None) -> None:
    if zero.stage != 3 and key != "reduce_bucket_size":
        zero.notes.append(
            f"{key} auto: transformers resolves it at stage 3 only and DeepSpeed then drops it; it has no effect at "
            f"z{zero.stage}"
        )
        return
    if hidden_size is None:
        zero.unresolved.append(f"zero_optimization.{key}")
        return
    formula, words = _FORMULAS[key]
    zero.keys[key] = formula(hidden_size)
    zero.notes.append(f"{key} auto -> {zero.keys[key]:,} = {words.format(h=hidden_size)}, as transformers resolves it")


def _check_stage(zero: Section) -> None:
    """Say what a key does at a stage that it is not made for."""
    stage = zero.stage
    if stage < 3 and zero.keys.pop("offload_param", None):
        zero.notes.append(
            f"zero_optimization.offload_param is set and has no effect at z{stage}: only the stage 3 optimizer is "
            "given it (runtime/engine.py, _configure_zero_optimizer); not used"
        )
    if stage == 0 and "offload_optimizer" in zero.keys:
        zero.impossible = "offload_optimizer needs stage 1, 2 or 3: at stage 0 no optimizer of DeepSpeed's offloads"
    optimizer = zero.keys.get("offload_optimizer", {})
    if stage < 3 and optimizer.get("ratio", 1.0) < 1.0:
        zero.impossible = "offload_optimizer.ratio below 1 needs stage 3 (DeepSpeed's offload_ratio_check)"
    if zero.keys.get("compute_grad_norm") is False and optimizer:
        zero.impossible = "compute_grad_norm: false does not go with offload_optimizer (stage_1_and_2.py)"
    if stage not in (1, 2) and zero.keys.get("compute_grad_norm") is False:
        zero.impossible = "compute_grad_norm: false needs stage 1 or 2 (DeepSpeed's compute_grad_norm_valid)"
    if stage in (1, 2) and optimizer and zero.keys.get("overlap_comm"):
        zero.notes.append(
            "overlap_comm with offload_optimizer: a second gradient bucket of reduce_bucket_size stays on the GPU "
            "(deepspeedai/DeepSpeed#467)"
        )
    if stage in (1, 2) and optimizer.get("device") == "nvme":
        zero.notes.append(f"offload_optimizer.device nvme at z{stage}: DeepSpeed offloads to the CPU there")
    for key in _ONLY_STAGE_3:
        value = zero.keys.get(key, False)
        if stage < 3 and (value if isinstance(value, bool) else value > 1):
            zero.notes.append(f"zero_optimization.{key} is set and has no effect at z{stage}: ZeRO++ is of stage 3")
