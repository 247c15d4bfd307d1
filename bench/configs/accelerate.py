"""accelerate's configuration file -> a DeepSpeed configuration, as its DeepSpeedPlugin makes one.

Read from accelerate 1.15 (commands/config/config_args.py, commands/launch.py, utils/dataclasses.py).
"""

from pathlib import Path
from typing import Any

from bench.configs.parse import check_filled_in
from bench.configs.translated import Translated, pointed_at
from bench.configs.values import is_auto, mapping, real, shown, switch, whole
from bench.errors import nearest

# Refused beside deepspeed_config_file (DeepSpeedPlugin._deepspeed_config_checks).
_NOT_WITH_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
_LAUNCHER = (
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_multinode_launcher",
)
_MOE = "deepspeed_moe_layer_cls_names"
_KEYS = (*_NOT_WITH_FILE, *_LAUNCHER, _MOE, "deepspeed_config_file", "zero3_init_flag")
# The fields of ClusterConfig, and two that process_config still reads. accelerate refuses any other key.
_TOP = (
    "command_file",
    "commands",
    "compute_environment",
    "debug",
    "deepspeed_config",
    "distributed_type",
    "downcast_bf16",
    "dynamo_backend",
    "dynamo_config",
    "enable_cpu_affinity",
    "fp16",
    "fp8_config",
    "fsdp_config",
    "gpu_ids",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "megatron_lm_config",
    "mixed_precision",
    "mpirun_config",
    "num_machines",
    "num_processes",
    "parallelism_config",
    "rdzv_backend",
    "same_network",
    "tpu_env",
    "tpu_name",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_zone",
    "use_cpu",
)
# Parallelism beside data parallelism, in DeepSpeed's own keys, so that resolve refuses it.
_PARALLEL = {
    "parallelism_config_tp_size": "tensor_parallel",
    "parallelism_config_sp_size": "sequence_parallel_size",
    "parallelism_config_cp_size": "sequence_parallel_size",
}
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}


def is_accelerate(data: dict[str, Any]) -> bool:
    """Whether the mapping is accelerate's."""
    return bool({"distributed_type", "compute_environment", "deepspeed_config"} & data.keys())


def from_accelerate(path: Path, data: dict[str, Any]) -> Translated:
    """Translate accelerate's file.

    Raises:
        ValueError: it is not DeepSpeed's, or a key or value is wrong.
    """
    # An unset variable must not be called a wrong value.
    check_filled_in("", {key: data.get(key) for key in ("deepspeed_config", "mixed_precision")})
    kind = data.get("distributed_type", "DEEPSPEED")
    if kind != "DEEPSPEED":
        raise ValueError(
            f"'distributed_type' is {shown(kind)}: not a DeepSpeed configuration; the suite measures DeepSpeed ZeRO, "
            "and torch DDP as its baseline (strategy ddp)"
        )
    section = data.get("deepspeed_config") or {}
    if isinstance(section, str):
        raise ValueError(f"'deepspeed_config' takes a section; {section} belongs under deepspeed_config_file in it")
    section = mapping("deepspeed_config", section)
    unknown = [f"'{key}' is no key of accelerate{nearest(key, _TOP)}" for key in data if key not in _TOP]
    unknown += [f"'deepspeed_config.{key}' is no key of accelerate{nearest(key, _KEYS)}" for key in section
               if key not in _KEYS]  # fmt: skip
    if unknown:
        raise ValueError("; ".join(unknown))
    named = section.get("deepspeed_config_file")
    if named is None or named == "none":
        found = Translated(_content(section))
    else:
        found = _with_file(path, data, section, named)
    _beside(found, data)
    if _MOE in section:
        _leaf_modules(found, section[_MOE])
    if section.get("zero3_init_flag") is not None:
        switch("deepspeed_config.zero3_init_flag", section["zero3_init_flag"])
        found.notes.append("zero3_init_flag: not used, for how the model is built changes no figure of a step")
    return found


def _with_file(path: Path, data: dict[str, Any], section: dict[str, Any], named: Any) -> Translated:
    if not isinstance(named, str):
        raise ValueError(f"'deepspeed_config.deepspeed_config_file' takes a path (got {shown(named)})")
    both = [f"deepspeed_config.{key}" for key in _NOT_WITH_FILE if key in section]
    both += ["mixed_precision"] if data.get("mixed_precision") is not None else []
    if both:
        raise ValueError(
            f"deepspeed_config_file together with {', '.join(both)}: accelerate refuses that; keep the values in "
            f"{named} and remove them here"
        )
    content = pointed_at(path, "deepspeed_config.deepspeed_config_file", named)
    if "zero_optimization" not in content:
        raise ValueError(f"{named} has no zero_optimization section: accelerate refuses that; add one")
    return Translated({"gradient_accumulation_steps": 1} | content, file=Path(named).name)


def _content(section: dict[str, Any]) -> dict[str, Any]:
    """Return what DeepSpeedPlugin builds where no file is named; a stage that is not set is 2."""
    zero: dict[str, Any] = {"stage": section.get("zero_stage", 2)}
    for part in ("optimizer", "param"):
        key = f"offload_{part}_device"
        device = section.get(key)
        if device in (None, "none"):
            continue
        if device not in ("cpu", "nvme"):
            raise ValueError(f"'deepspeed_config.{key}' takes none, cpu, nvme (got {shown(device)})"
                             f"{nearest(device, ('none', 'cpu', 'nvme'))}")  # fmt: skip
        folder = section.get(f"offload_{part}_nvme_path")
        if device == "nvme" and (not isinstance(folder, str) or folder == "none"):
            raise ValueError(f"'deepspeed_config.{key}' nvme needs offload_{part}_nvme_path, a folder on the drive")
        zero[f"offload_{part}"] = {"device": device} | ({"nvme_path": folder} if device == "nvme" else {})
    if section.get("zero3_save_16bit_model") is not None:
        saved = switch("deepspeed_config.zero3_save_16bit_model", section["zero3_save_16bit_model"])
        zero["stage3_gather_16bit_weights_on_model_save"] = saved
    content: dict[str, Any] = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    steps = section.get("gradient_accumulation_steps", "auto")
    name = "deepspeed_config.gradient_accumulation_steps"
    content["gradient_accumulation_steps"] = steps if is_auto(steps) else whole(name, steps, 1)
    clipping = section.get("gradient_clipping", "auto")
    content["gradient_clipping"] = clipping if is_auto(clipping) else real(
        "deepspeed_config.gradient_clipping", clipping
    )  # fmt: skip
    return content | {"zero_optimization": zero}


def _beside(found: Translated, data: dict[str, Any]) -> None:
    """Take the precision and the size of the job, which stand beside the DeepSpeed section."""
    precision = data.get("mixed_precision")
    precision = "no" if precision is False else precision  # YAML 1.1 reads an unquoted no so
    if isinstance(precision, str) and precision in _PRECISIONS:
        found.settings["dtype"] = _PRECISIONS[precision]
    elif precision == "fp8":
        raise ValueError("'mixed_precision' fp8: the suite trains in fp32, bf16 and fp16")
    elif precision is not None:
        raise ValueError(f"'mixed_precision' takes {', '.join(_PRECISIONS)} (got {shown(precision)})")
    elif data.get("fp16") is not None:  # accelerate's format before mixed_precision
        found.settings["dtype"] = "fp16" if switch("fp16", data["fp16"]) else "fp32"
    for key, name in (("num_processes", "world_size"), ("num_machines", "num_nodes")):
        if data.get(key) is not None and data[key] != -1:
            found.settings[name] = whole(key, data[key], 1)

    parallel = mapping("parallelism_config", data.get("parallelism_config") or {})
    for key, name in _PARALLEL.items():
        if parallel.get(key) is not None and (size := whole(f"parallelism_config.{key}", parallel[key])) > 1:
            found.content[name] = {"autotp_size": size} if name == "tensor_parallel" else size
    compiled = data.get("dynamo_config") or data.get("dynamo_backend") not in (None, "NO", "no", False)
    if compiled:
        found.notes.append("dynamo_config: not used; the suite runs the modules without torch.compile")


def _leaf_modules(found: Translated, names: Any) -> None:
    if not isinstance(names, str) or not names.strip():
        raise ValueError(f"'deepspeed_config.{_MOE}' takes names with commas between them (got {shown(names)})")
    zero = mapping("zero_optimization", found.content["zero_optimization"])
    leaves = {"leaf_module": {"classes": [name.strip() for name in names.split(",")]}}
    found.content = found.content | {"zero_optimization": zero | leaves}
