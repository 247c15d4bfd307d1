"""The other top-level keys: passed on, set aside with a reason, or a feature that the suite cannot train with."""

from typing import Any

from bench.configs.keys import NO_FIGURE, PASSED_ON, REMOVED, REMOVED_SINCE, TOP_LEVEL, UNSUPPORTED
from bench.configs.values import is_auto, mapping, real, shown, switch, whole
from bench.errors import nearest

_DTYPES = ("fp16", "bf16", "fp32")
_WIDER = (*_DTYPES, "float16", "bfloat16", "float32", "half", "float")  # DtypeEnum's words (runtime/config.py)
_PARTS = {
    "aio": (
        "block_size",
        "queue_depth",
        "intra_op_parallelism",
        "thread_count",
        "single_submit",
        "overlap_events",
        "use_gds",
    ),
    "data_types": ("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"),
}
# Which part of a feature's section switches it on; a section with none of these is on when it is not empty.
_SIZES = {"tensor_parallel": ("autotp_size", "tp_size"), "expert_parallel": ("autoep_size",)}


def check_top_level(content: dict[str, Any]) -> None:
    """Refuse a key that DeepSpeed does not know; DeepSpeed itself would pass over it in silence.

    Raises:
        ValueError: naming all such keys.
    """
    unknown = [f"'{key}' is no key of DeepSpeed{nearest(key, TOP_LEVEL)}" for key in content if key not in TOP_LEVEL]
    if unknown:
        raise ValueError("; ".join(unknown) + "; DeepSpeed would pass over it in silence: correct or remove it")


def passed_on(content: dict[str, Any], unresolved: list[str]) -> dict[str, Any]:
    """Return the keys that the suite hands to DeepSpeed as they are.

    Raises:
        ValueError: a value is wrong.
    """
    result: dict[str, Any] = {}
    for key in sorted(PASSED_ON & content.keys()):
        value = content[key]
        if value is None:
            continue
        if is_auto(value):
            unresolved.append(key)
        elif key in _PARTS:
            result[key] = _section(key, mapping(key, value))
        elif key == "communication_data_type":
            if not isinstance(value, str) or value.lower() not in _DTYPES:
                raise ValueError(f"'{key}' takes {', '.join(_DTYPES)} (got {shown(value)})")
            result[key] = value.lower()
        elif key == "gradient_predivide_factor":
            result[key] = real(key, value)
        else:
            result[key] = switch(key, value)
    return result


def _section(key: str, section: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part, value in section.items():
        name = f"{key}.{part}"
        if part not in _PARTS[key]:
            valid = _PARTS[key]
            raise ValueError(f"'{name}' is no key of DeepSpeed{nearest(part, valid)}; valid: {', '.join(valid)}")
        if part.endswith("_dtype"):
            if value is not None and (not isinstance(value, str) or value not in _WIDER):
                raise ValueError(f"'{name}' takes {', '.join(_DTYPES)} (got {shown(value)})")
            result[part] = value
        elif part == "keep_in_fp32_modules":
            if not is_auto(value) and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                raise ValueError(f"'{name}' takes auto or a list of names (got {shown(value)})")
            result[part] = value
        elif part in ("single_submit", "overlap_events", "use_gds"):
            result[part] = switch(name, value)
        else:
            result[part] = whole(name, value, 1)
    return result


def set_aside(content: dict[str, Any]) -> list[str]:
    """Return the sentences for the keys that change no figure; keys that share a reason share one."""
    grouped: dict[str, list[str]] = {}
    for key in content:
        if key in NO_FIGURE:
            grouped.setdefault(NO_FIGURE[key], []).append(key)
    notes = [f"{', '.join(keys)}: not used, for {reason}" for reason, keys in grouped.items()]
    if content.get("activation_checkpointing") is not None:
        notes.append(
            "activation_checkpointing: not used; the section is read by deepspeed.checkpointing, which no model of "
            "transformers calls (the scenario's activation_checkpointing is transformers' own)"
        )
    if content.get("pipeline") is not None:
        notes.append("pipeline: not used; only a PipelineModule reads it, and no model of the suite is one")
    return notes


def unsupported(content: dict[str, Any], deepspeed: tuple[int, ...], notes: list[str]) -> list[str]:
    """Return why the suite cannot train what the file describes; a feature that is off is set aside with a note.

    Raises:
        ValueError: a feature's section is wrong.
    """
    reasons = []
    for key in content:
        if key in UNSUPPORTED:
            if _is_on(key, content[key]):
                reasons.append(f"{key}: {UNSUPPORTED[key]} is not supported by the suite")
            else:
                notes.append(f"{key} is off; not used" + (
                    " (DeepSpeed 0.19.8 and later refuse the key even so)" if key in REMOVED else ""
                ))  # fmt: skip
        elif key == "sparse_gradients" and deepspeed >= REMOVED_SINCE and content[key] is not None:
            if not is_auto(content[key]) and switch(key, content[key]):
                reasons.append("sparse_gradients: DeepSpeed 0.19.8 and later refuse the key")
            else:
                notes.append("sparse_gradients is off; not used (DeepSpeed 0.19.8 and later refuse the key even so)")
    operation = content.get("gradient_allreduce_op", "mean")
    if operation not in ("mean", "sum", "MEAN", "SUM", None):
        raise ValueError(f"'gradient_allreduce_op' takes mean or sum (got {shown(operation)})")
    if operation in ("sum", "SUM"):
        reasons.append("gradient_allreduce_op sum: the other strategies average, and rows would not be comparable")
    managed = content.get("managed_gradient_accumulation", True)
    if managed is not None and not switch("managed_gradient_accumulation", managed):
        reasons.append("managed_gradient_accumulation false: the suite lets DeepSpeed count the micro steps")
    return reasons


def _is_on(key: str, value: Any) -> bool:
    """Whether a feature's section switches it on: ``enabled``, a size above 1, or else anything that is set."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, int | float | str):
        return whole(key, value) > 1
    section = mapping(key, value)
    if key == "compile":
        return switch("compile.deepcompile", section.get("deepcompile", False))
    for size in _SIZES.get(key, ()):
        if section.get(size) is not None and whole(f"{key}.{size}", section[size]) > 1:
            return True
    if key in _SIZES:
        inner = section.get("tensor_parallel", section.get("tp"))
        return isinstance(inner, dict) and _is_on("tensor_parallel", inner)
    if "enabled" in section and not isinstance(section["enabled"], dict):
        return switch(f"{key}.enabled", section["enabled"])
    return any(_is_on(key, part) for part in section.values() if isinstance(part, dict)) or (
        bool(section) and not any(isinstance(part, dict) for part in section.values())
    )
