"""The DeepSpeed configuration of a row, complete: other tools add nothing to it."""

import json
from typing import Any

from bench.cell import Cell
from bench.zero.ds_config import ds_config

# torch.optim.AdamW's own, which the worker leaves as they are.
BETAS, EPS = (0.9, 0.999), 1e-8
# What the suite adds for its own log, with the section that it is in.
_OWN_KEYS = ("steps_per_print", "wall_clock_breakdown")
_OWN_ZERO_KEYS = ("log_trace_cache_warnings",)


def optimizer_section(cell: Cell) -> dict[str, Any]:
    """Return the ``optimizer`` section that has DeepSpeed build what the worker builds: torch's AdamW, in one group.

    Without it HF Trainer builds AdamW itself, in two groups, with no weight decay on norms and biases: another
    optimizer, and at stages 1 and 2 another traffic, as parameters are gathered by group. ``torch_adam`` keeps
    DeepSpeed's own Adam out; left out, ``foreach`` and ``fused`` are torch's choice, which depends on the device.
    """
    chosen = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    return {
        "type": "AdamW",
        "params": {
            "lr": cell.optimizer.lr,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": cell.optimizer.weight_decay,
            "torch_adam": True,
            **chosen[cell.optimizer.implementation],
        },
    }


def deepspeed_config(cell: Cell) -> dict[str, Any]:
    """Return what the worker hands to ``deepspeed.initialize``, with the optimizer and without what serves the suite.

    A key of these that the user's own configuration set is the user's.
    """
    config = ds_config(cell)
    for key in _OWN_KEYS:
        del config[key]
    for key in _OWN_ZERO_KEYS:
        config["zero_optimization"].pop(key, None)
    config |= {key: cell.deepspeed[key] for key in _OWN_KEYS if key in cell.deepspeed}
    config["zero_optimization"] |= {
        key: cell.zero_optimization[key] for key in _OWN_ZERO_KEYS if key in cell.zero_optimization
    }
    return config | {"optimizer": optimizer_section(cell)}


def deepspeed_json(cell: Cell) -> str:
    """Return `deepspeed_config` as the text of a file."""
    return json.dumps(deepspeed_config(cell), indent=2) + "\n"
