"""Which parameters of a model require a gradient: all, peft's adapters, or those that a glob matches."""

import warnings
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from bench.models.training import ALL_LINEAR
from bench.scenario import Freeze, Lora
from bench.worker.failure import UnsupportedError


def choose_trained(model: nn.Module, lora: Lora | None, freeze: Freeze | None) -> nn.Module:
    """Return ``model`` with what is trained marked by ``requires_grad``; with ``lora``, peft's model around it.

    Raises:
        UnsupportedError: there is nothing of that kind in ``model``, or peft is not installed.
    """
    if lora is not None:
        return _with_adapters(model, lora)
    if freeze is not None:
        names = [name for name, _ in model.named_parameters()]
        if idle := [glob for glob in freeze.trainable if not any(fnmatchcase(name, glob) for name in names)]:
            raise UnsupportedError(f"freeze.trainable: {', '.join(idle)}: no parameter is called so; {names[0]} is one")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(fnmatchcase(name, glob) for glob in freeze.trainable))
    return model


def _with_adapters(model: Any, lora: Lora) -> nn.Module:
    try:
        import peft
    except ImportError as error:
        raise UnsupportedError(f"finetuning lora needs peft, which cannot be imported: {error}") from error
    everywhere = ALL_LINEAR in lora.target_modules
    config = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=ALL_LINEAR if everywhere else list(lora.target_modules),
        task_type=peft.TaskType.CAUSAL_LM,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other layouts (GPT-2's), which peft then handles by itself
            # In the model's dtype, which is what the engine would cast them to at stages 0 to 2 and not at stage 3.
            adapted: nn.Module = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise UnsupportedError(f"finetuning lora: peft finds no layer to adapt: {error}") from error
    return adapted


def described(model: nn.Module) -> dict[str, Any]:
    """Return what is trained, read from the model itself: kind of finetuning, and rank and scaling of its adapters."""
    adapters: list[Any] = [
        module for module in model.modules() if isinstance(getattr(module, "lora_A", None), nn.ModuleDict)
    ]
    if not adapters:
        every = all(parameter.requires_grad for parameter in model.parameters())
        return {"finetuning": "full" if every else "freeze"}
    first = adapters[0]
    (name,) = first.lora_A
    return {
        "finetuning": "lora",
        "lora_r": int(first.r[name]),
        "lora_alpha": float(first.scaling[name] * first.r[name]),
        "lora_dropout": max(float(getattr(module.lora_dropout[name], "p", 0.0)) for module in adapters),
        "num_lora_layers": len(adapters),
    }
