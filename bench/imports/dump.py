"""What a DeepSpeed log says that ran: the configuration dump, the version, the optimizer wrapper."""

import re

from bench.imports.row import Setting

_ENTRY = re.compile(r"config\.py:\d+:print\]\s+(\w+) \.* ([^\n]*)")
_BLOCK = re.compile(r"config\.py:\d+:print\]\s+zero_config \.* \{")
_STAGE = re.compile(r"\bstage=(?:<[\w.]+: )?(\d)\b")
_OFFLOAD = re.compile(r"\boffload_(optimizer|param)=\w+\(device=(?:<[\w.]+: )?'(\w+)'")
_SWITCH = re.compile(r"\b(overlap_comm|reduce_scatter|contiguous_gradients)=(True|False)\b")
_BUCKET = re.compile(r"\b(reduce_bucket_size|allgather_bucket_size)=(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})\b")
_OPTIMIZER = re.compile(r"DeepSpeed Final Optimizer = ([\w.]+)")
_VERSION = re.compile(r"DeepSpeed info: version=([\w.+-]+)")
_KEPT = (
    "world_size",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_enabled",
    "zero_optimization_stage",
    "bfloat16_enabled",
    "fp16_enabled",
    "wall_clock_breakdown",
)
_WORDS: dict[str, Setting] = {"True": True, "False": False}


def _plain(text: str) -> Setting:
    return _WORDS.get(text, int(text) if text.isdecimal() and len(text) < 16 else text[:60])


def _zero_config(text: str) -> dict[str, Setting]:
    """Return the settings of a zero_config entry: one line of ``key=value``, in older releases a JSON object."""
    as_pairs = re.sub(r'"(\w+)": ?', r"\1=", text).replace("=true", "=True").replace("=false", "=False")
    found: dict[str, Setting] = {}
    if stage := _STAGE.search(as_pairs):
        found["zero_optimization_stage"] = int(stage[1])
    found |= {f"offload_{name}": device for name, device in _OFFLOAD.findall(as_pairs) if device != "none"}
    found |= {name: value == "True" for name, value in _SWITCH.findall(as_pairs)}
    return found | {name: int(value.replace(",", "")) for name, value in _BUCKET.findall(as_pairs)}


def settings(log: str) -> dict[str, Setting]:
    """Return what the log says of the run, by the names of DeepSpeed's configuration."""
    entries = {name: value.strip() for name, value in _ENTRY.findall(log)}
    ran: dict[str, Setting] = {name: _plain(entries[name]) for name in _KEPT if entries.get(name)}
    for name, entry in (("bfloat16_enabled", "bfloat16_config"), ("fp16_enabled", "float16_config")):
        # Newer releases print the section, not the switch.
        if section := re.match(r"enabled=(True|False)\b", entries.get(entry, "")):
            ran.setdefault(name, section[1] == "True")
    block = _BLOCK.search(log)
    ran |= _zero_config(log[block.end() :].partition("}")[0] if block else entries.get("zero_config", ""))
    if optimizer := _OPTIMIZER.findall(log):
        ran["final_optimizer"] = optimizer[-1][:60]
    if version := _VERSION.search(log):
        ran["deepspeed_version"] = version[1][:40]
    return ran
