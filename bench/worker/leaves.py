"""Stage 3 and mixtures of experts: modules that are gathered as one, because ranks send tokens to different experts.

A gather is a collective. Where every expert is a module of its own, a rank calls only those that its tokens go to, and
ranks that call others wait for each other for ever. DeepSpeed's remedy is a leaf module, gathered with all below it
(``deepspeed/utils/z3_leaf_module.py``); 0.19 makes leaves of three classes by itself
(``runtime/zero/leaf_module_config.py``). transformers 5 holds the experts of a layer in one module, whose parameters
are gathered together whatever the routing; transformers 4 has a module for each.
"""

from typing import Any

from torch import nn


def expert_blocks(model: nn.Module) -> list[type[nn.Module]]:
    """Return the classes of modules that choose among experts which are modules of their own."""
    found: dict[type[nn.Module], None] = {}
    for module in model.modules():
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.ModuleList | nn.ModuleDict) and len(experts) > 1:
            found[type(module)] = None
    return list(found)


def set_leaf_modules(model: nn.Module) -> None:
    """Make leaves of the modules that need it, and of no others."""
    if blocks := expert_blocks(model):
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, blocks)


def leaf_modules(engine: Any) -> dict[str, int]:
    """Return how many modules of which class are leaves, by the class's name."""
    found: dict[str, int] = {}
    for module in engine.module.modules():
        if getattr(module, "_z3_leaf", False):
            found[type(module).__name__] = found.get(type(module).__name__, 0) + 1
    return found
