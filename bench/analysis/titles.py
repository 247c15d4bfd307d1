"""What the rows of one comparison share, in words: the heading of their tables."""

import json
from typing import Any

import pandas as pd

from bench.largest import size_text


def several_runs(frame: pd.DataFrame) -> bool:
    """Whether the rows are of more than one run."""
    return "run" in frame and frame["run"].nunique() > 1


def _trained(values: dict[str, Any], group: pd.DataFrame) -> str:
    """Return in words what is trained, where that is not all."""
    fraction = group["trainable_fraction"].dropna()
    share = f" ({fraction.iloc[0]:.2%} trained)" if len(fraction) else ""
    if values["finetuning"] == "lora":
        return f"LoRA of rank {json.loads(values['lora'])['r']}{share}"
    return f"all frozen but {', '.join(json.loads(values['freeze'])['trainable'])}{share}"


def _how_it_trains(values: dict[str, Any], group: pd.DataFrame) -> list[str]:
    """Return in words the controls that most tables leave at their defaults."""
    recomputed = {"none": [], "non-reentrant": ["activation checkpointing"]}
    parts = list(recomputed.get(values["activation_checkpointing"], ["reentrant activation checkpointing"]))
    if values["finetuning"] != "full":
        parts.append(_trained(values, group))
    if isinstance(values["attn_implementation"], str):  # pandas has a number for what is not there
        parts.append(f"{values['attn_implementation']} attention")
    return parts + ([values["emulation"]] if values["emulation"] else [])


def _params(group: pd.DataFrame) -> str:
    """Return the size of the model in brackets; nothing where no row knows it."""
    size = group["num_params"].dropna()
    return f" ({size.iloc[0] / 1e6:,.1f}M parameters)" if len(size) else ""


def same_title(values: dict[str, Any], group: pd.DataFrame) -> str:
    """Return in words what the lines of a group with one global batch per GPU count share."""
    batch = sorted(group["train_batch_size"].unique())
    steps = sorted(group["gradient_accumulation_steps"].unique())
    parts = [
        f"{values['model']}{_params(group)}",
        f"micro batch {values['train_micro_batch_size_per_gpu']}",
        f"GAS {'/'.join(map(str, steps))}",
        f"global batch {'/'.join(map(str, batch))}",
        f"seq {values['seq_length']}",
        values["dtype"],
        f"{values['data']} data",
        *_how_it_trains(values, group),
    ]
    parts += ["stacks side by side"] if group["requested_stack"].notna().any() else []
    return ", ".join(parts + (["runs side by side"] if several_runs(group) else []))


def largest_title(values: dict[str, Any], group: pd.DataFrame) -> str:
    """Return the same of lines that each have their largest batch."""
    budget = values["batch_budget_bytes"]
    parts = [
        f"{values['model']}{_params(group)}",
        "every strategy at its largest batch that fits into "
        + ("the GPU's memory" if pd.isna(budget) else f"{size_text(int(budget))} per GPU"),
        f"GAS {values['gradient_accumulation_steps']}",
        f"seq {values['seq_length']}",
        values["dtype"],
        f"{values['data']} data",
        *_how_it_trains(values, group),
    ]
    return ", ".join(parts + (["runs side by side"] if several_runs(group) else []))
