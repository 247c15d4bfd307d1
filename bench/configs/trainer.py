"""Training arguments with a ``deepspeed:`` key -> a DeepSpeed configuration, and the settings around it.

For transformers' Trainer and what is built on it: LLaMA-Factory (src/llamafactory/hparams) and axolotl
(src/axolotl/utils/schemas), whose own spellings are in the tables below.
"""

from pathlib import Path
from typing import Any

from bench.configs.parse import check_filled_in
from bench.configs.translated import Translated, pointed_at
from bench.configs.values import is_auto, mapping, real, shown, switch, whole

# The setting -> the key of Trainer, LLaMA-Factory, axolotl.
_WHOLE = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", "micro_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "seq_length": ("cutoff_len", "sequence_len", "max_seq_length", "max_length"),
}
_REAL = {
    "gradient_clipping": ("max_grad_norm",),
    "lr": ("learning_rate",),
    "weight_decay": ("weight_decay",),
}
_TEXT = {"model": ("model_name_or_path", "base_model"), "finetuning": ("finetuning_type", "adapter")}
# Parallelism beside data parallelism, in DeepSpeed's own keys, so that resolve refuses it.
_PARALLEL = {
    "sequence_parallel_degree": "sequence_parallel_size",
    "sequence_parallel_size": "sequence_parallel_size",
    "context_parallel_size": "sequence_parallel_size",
    "tensor_parallel_size": "tensor_parallel",
}
# The key in the DeepSpeed configuration that transformers compares with a setting (trainer_config_process).
_COMPARED = {
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "lr": "optimizer.params.lr",
    "weight_decay": "optimizer.params.weight_decay",
}
_ARGUMENTS = (
    {"deepspeed", "fsdp", "fsdp_config", "output_dir"}
    | {key for table in (_WHOLE, _REAL, _TEXT) for keys in table.values() for key in keys}
) - {"gradient_accumulation_steps"}
_ADAMW = ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "paged_adamw_32bit")
_QUANTIZED = ("quantization_bit", "load_in_4bit", "load_in_8bit")
_OTHER_MODULES = (
    "enable_liger_kernel",
    "flash_attn",
    "flash_attention",
    "neat_packing",
    "packing",
    "sample_packing",
    "torch_compile",
    "use_liger_kernel",
    "use_unsloth",
)
_RECOMPUTES = ("gradient_checkpointing", "activation_checkpointing")


def is_trainer(data: dict[str, Any]) -> bool:
    """Whether the mapping is training arguments. DeepSpeed's own files have ``zero_optimization`` or none of these."""
    return "zero_optimization" not in data and bool(_ARGUMENTS & data.keys())


def from_trainer(path: Path, data: dict[str, Any]) -> Translated:
    """Translate training arguments.

    Raises:
        ValueError: they do not use DeepSpeed, or a key or value is wrong.
    """
    given = data.get("deepspeed")
    if given in (None, "", False):
        other = "FSDP" if data.get("fsdp") or data.get("fsdp_config") else "no 'deepspeed' key"
        raise ValueError(
            f"training arguments with {other}: not a DeepSpeed configuration; set deepspeed: to a file or a section"
        )
    read = (_ARGUMENTS | _COMPARED.keys()) - {"output_dir"}
    check_filled_in("", {key: value for key, value in data.items() if key in read})
    if isinstance(given, str):
        found = Translated(dict(pointed_at(path, "deepspeed", given)), file=Path(given).name)
    else:
        found = Translated(dict(mapping("deepspeed", given)))
    found.settings = _settings(data)
    if (dtype := _dtype(data)) is not None:
        found.settings["dtype"] = dtype
    _recompute(found, data)
    for key, name in _PARALLEL.items():
        if data.get(key) is not None and whole(key, data[key], 0) > 1:
            size = whole(key, data[key])
            found.content[name] = {"autotp_size": size} if name == "tensor_parallel" else size
    _optimizer(found, data)
    others = [key for key in _OTHER_MODULES if data.get(key) not in (None, False, "", "auto", "disabled")]
    if others:
        found.notes.append(
            f"{', '.join(others)}: not used; the suite runs transformers' own modules, sequences unpacked"
        )
    if data.get("pure_bf16") and switch("pure_bf16", data["pure_bf16"]):
        found.notes.append("pure_bf16: not used; DeepSpeed keeps fp32 master weights")
    _compare(found, data)
    return found


def _settings(data: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, keys in _WHOLE.items():
        for key in keys:
            if data.get(key) is not None and not is_auto(data[key]):
                settings.setdefault(name, whole(key, data[key], 1))
    for name, keys in _REAL.items():
        for key in keys:
            if data.get(key) is not None:
                settings.setdefault(name, real(key, data[key]))
    for name, keys in _TEXT.items():
        for key in keys:
            value = data.get(key)
            if value not in (None, ""):
                if not isinstance(value, str):
                    raise ValueError(f"'{key}' takes a name (got {shown(value)})")
                settings.setdefault(name, value)
    if "base_model" in data and "finetuning" not in settings:
        settings["finetuning"] = "full"  # axolotl: no adapter
    if settings.get("finetuning") == "lora" and any(data.get(key) not in (None, False, 0) for key in _QUANTIZED):
        settings["finetuning"] = "qlora"
    return settings


def _optimizer(found: Translated, data: dict[str, Any]) -> None:
    """Hand on an optimizer that is not AdamW, so that resolve says so; ``optimizer`` is axolotl's name for it."""
    name = data.get("optim", data.get("optimizer"))
    if isinstance(name, str) and name and name not in _ADAMW and "optimizer" not in found.content:
        found.content["optimizer"] = {"type": name}


def _dtype(data: dict[str, Any]) -> str | None:
    """Return the dtype. axolotl writes ``bf16: auto`` and ``bf16: full`` too; auto is bf16 wherever a GPU has it."""
    on = {}
    for name in ("bf16", "fp16"):
        value = data.get(name)
        if name == "bf16" and value in ("auto", "full"):
            value = data.get("fp16") not in (True, "true") if value == "auto" else True
        if value is not None:
            on[name] = switch(name, value)
    if on.get("bf16") and on.get("fp16"):
        raise ValueError("'bf16' and 'fp16' are both true; keep one")
    chosen = [name for name, value in on.items() if value]
    return chosen[0] if chosen else ("fp32" if len(on) == 2 else None)


def _recompute(found: Translated, data: dict[str, Any]) -> None:
    """Take activation checkpointing; transformers 5 is non-reentrant unless told otherwise, before 5 it was not."""
    if data.get("disable_gradient_checkpointing") is not None:  # LLaMA-Factory's
        if switch("disable_gradient_checkpointing", data["disable_gradient_checkpointing"]):
            found.settings["activation_checkpointing"] = "none"
            return
        found.settings["activation_checkpointing"] = "reentrant"  # its use_reentrant_gc is true
    elif "finetuning_type" in data and not any(data.get(key) is not None for key in _RECOMPUTES):
        found.notes.append(
            "LLaMA-Factory recomputes activations (reentrant) unless disable_gradient_checkpointing is true; the file "
            "does not say, so activation_checkpointing is the scenario's"
        )
    for key in _RECOMPUTES:
        value = data.get(key)
        if value is None:
            continue
        # axolotl's "offload" and "unsloth" recompute too, and keep the checkpoints elsewhere.
        if value in ("offload", "offload_disk", "unsloth", "legacy"):
            found.notes.append(f"{key}: {value}: checkpoints stay on the GPU in the suite")
            on = True
        else:
            on = switch(key, value)
        options = data.get(f"{key}_kwargs")
        options = {} if options is None else mapping(f"{key}_kwargs", options)
        reentrant = switch(f"{key}_kwargs.use_reentrant", options.get("use_reentrant", False))
        found.settings["activation_checkpointing"] = "none" if not on else "reentrant" if reentrant else "non-reentrant"
        if on and "use_reentrant" not in options:
            found.notes.append(f"{key}: non-reentrant, transformers 5's default (before 5 it was reentrant)")
    if data.get("use_reentrant_gc") is not None and found.settings.get("activation_checkpointing", "none") != "none":
        chosen = switch("use_reentrant_gc", data["use_reentrant_gc"])
        found.settings["activation_checkpointing"] = "reentrant" if chosen else "non-reentrant"


def _compare(found: Translated, data: dict[str, Any]) -> None:
    """Refuse a value that the arguments state otherwise, as transformers does (trainer_config_finalize)."""
    unlike = []
    for name, key in _COMPARED.items():
        value: Any = found.content
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None or is_auto(value) or name not in found.settings:
            continue
        if real(key, value) != found.settings[name]:
            unlike.append(f"{key} is {shown(value)} in the DeepSpeed configuration, {found.settings[name]} beside it")
    for name in ("fp16", "bf16"):
        section = found.content.get(name)
        enabled = section.get("enabled") if isinstance(section, dict) else None
        if isinstance(enabled, bool) and isinstance(data.get(name), bool) and enabled != data[name]:
            unlike.append(f"{name}.enabled is {enabled} in the DeepSpeed configuration, {data[name]} beside it")
    if unlike:
        raise ValueError("; ".join(unlike) + '; transformers refuses that: set the former to "auto"')
