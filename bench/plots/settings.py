"""The settings of a group of rows that its heading names only where they are not the usual ones."""

import json
from typing import Any

import pandas as pd


def _trained(values: dict[str, Any], group: pd.DataFrame) -> str:
    """Return in words what is trained, where that is not all."""
    fraction = group["trainable_fraction"].dropna()
    share = f" ({fraction.iloc[0]:.2%} trained)" if len(fraction) else ""
    if values["finetuning"] == "lora":
        return f"LoRA of rank {json.loads(values['lora'])['r']}{share}"
    return f"all frozen but {', '.join(json.loads(values['freeze'])['trainable'])}{share}"


def how_it_trains(values: dict[str, Any], group: pd.DataFrame) -> list[str]:
    """Return in words the controls that most groups leave at their defaults."""
    words = {"none": "", "non-reentrant": "activation checkpointing", "reentrant": "reentrant activation checkpointing"}
    parts = [word] if (word := words[values["activation_checkpointing"]]) else []
    if values["finetuning"] != "full":
        parts.append(_trained(values, group))
    if isinstance(values["attn_implementation"], str):  # pandas has a number for what is not there
        parts.append(f"{values['attn_implementation']} attention")
    return parts + ([values["emulation"]] if values["emulation"] else [])


def params_text(group: pd.DataFrame) -> str:
    """Return the size of the model in brackets; nothing where no row knows it."""
    size = group["num_params"].dropna()
    return f" ({size.iloc[0] / 1e6:,.1f}M parameters)" if len(size) else ""
