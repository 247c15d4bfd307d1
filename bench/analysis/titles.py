"""What the rows of one comparison share, in words: the heading of their tables."""

import json
from typing import Any

import pandas as pd
import pyarrow as pa

from bench.largest import size_text

Line = dict[str, Any]  # of a comparison, by column


def several_runs(frame: pd.DataFrame) -> bool:
    """Whether the rows are of more than one run."""
    return "run" in frame and frame["run"].nunique() > 1


# Columns that no table reads; there are many, and lines of plain values are made slowly.
_UNREAD = ("stack_", "parity_", "offload_", "practice_", "zero_optimization", "deepspeed")


def plain(lines: pd.DataFrame) -> list[Line]:
    """Return the lines of a comparison as dictionaries; what is missing is ``None``."""
    read = [name for name in lines.columns if not name.startswith(_UNREAD)]
    found: list[Line] = pa.Table.from_pandas(lines[read], preserve_index=False).to_pylist()
    return found


def _known(group: list[Line], name: str) -> Any:
    """Return a value of the first line that has it, ``None`` where none has."""
    return next((line[name] for line in group if line[name] is not None), None)


def _trained(group: list[Line]) -> str:
    """Return in words what is trained, where that is not all."""
    fraction, first = _known(group, "trainable_fraction"), group[0]
    share = "" if fraction is None else f" ({fraction:.2%} trained)"
    if first["finetuning"] == "lora":
        return f"LoRA of rank {json.loads(first['lora'])['r']}{share}"
    return f"all frozen but {', '.join(json.loads(first['freeze'])['trainable'])}{share}"


def _how_it_trains(group: list[Line]) -> list[str]:
    """Return in words the controls that most tables leave at their defaults."""
    first = group[0]
    words = {"none": "", "non-reentrant": "activation checkpointing", "reentrant": "reentrant activation checkpointing"}
    parts = [word] if (word := words[first["activation_checkpointing"]]) else []
    if first["finetuning"] != "full":
        parts.append(_trained(group))
    if first["attn_implementation"] is not None:
        parts.append(f"{first['attn_implementation']} attention")
    return parts + ([first["emulation"]] if first["emulation"] else [])


def _model(group: list[Line]) -> str:
    """Return the model and its size in brackets, where a row knows it."""
    size = _known(group, "num_params")
    return f"{group[0]['model']}" + ("" if size is None else f" ({size / 1e6:,.1f}M parameters)")


def _side_by_side(group: list[Line]) -> list[str]:
    several = len({line.get("run") for line in group}) > 1
    return (["stacks side by side"] if _known(group, "requested_stack") else []) + (
        ["runs side by side"] if several else []
    )


def title(group: list[Line]) -> str:
    """Return in words what the lines of a group share."""
    first = group[0]
    steps = "/".join(str(n) for n in sorted({line["gradient_accumulation_steps"] for line in group}))
    if first["largest_batch"]:
        budget = first["batch_budget_bytes"]
        memory = "the GPU's memory" if budget is None else f"{size_text(budget)} per GPU"
        batch = [f"every strategy at its largest batch that fits into {memory}", f"GAS {steps}"]
    else:
        sizes = "/".join(str(n) for n in sorted({line["train_batch_size"] for line in group}))
        batch = [f"micro batch {first['train_micro_batch_size_per_gpu']}", f"GAS {steps}", f"global batch {sizes}"]
    parts = [_model(group), *batch, f"seq {first['seq_length']}", first["dtype"], f"{first['data']} data"]
    return ", ".join(parts + _how_it_trains(group) + _side_by_side(group))
