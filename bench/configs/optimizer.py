"""optimizer, scheduler and gradient_clipping -> what the suite's AdamW takes of them."""

from dataclasses import dataclass, field
from typing import Any

from bench.configs.values import is_auto, mapping, real, shown, switch
from bench.errors import nearest

# The suite's AdamW is torch's, with torch's betas and eps.
_BETAS, _EPS = [0.9, 0.999], 1e-8
# DeepSpeed's Adam is AdamW unless adam_w_mode is false (ADAM_W_MODE_DEFAULT, runtime/config.py).
_ADAM = ("adam", "adamw")
_NO_FIGURE = ("torch_adam", "fused", "foreach", "set_grad_none", "adamw_mode")
_PARAMS = ("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "adam_w_mode", "max_grad_norm")


@dataclass
class Settled:
    """``values``: lr, weight_decay, gradient_clipping, and betas and eps where the file gives them."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)
    impossible: str | None = None


def optimizer(content: dict[str, Any], beside: dict[str, Any], asked: dict[str, float]) -> Settled:
    """Settle the optimizer: the file, then the file around it, then the scenario (``asked``).

    Raises:
        ValueError: a value is wrong.
    """
    settled = Settled()
    section = content.get("optimizer")
    params: dict[str, Any] = {}
    if section is not None:
        section = mapping("optimizer", section)
        for key in section:
            if key not in ("type", "params", "legacy_fusion"):
                raise ValueError(f"'optimizer.{key}' is no key of DeepSpeed{nearest(key, ('type', 'params'))}; "
                                 "valid: type, params, legacy_fusion")  # fmt: skip
        kind = section.get("type")
        if kind is not None and not isinstance(kind, str):
            raise ValueError(f"'optimizer.type' takes a name (got {shown(kind)})")
        if kind is not None and kind.lower() not in _ADAM:
            settled.impossible = f"optimizer {kind}: the suite updates with torch AdamW in every strategy"
        params = mapping("optimizer.params", section.get("params") or {})
    _take_params(settled, params)
    for key in ("lr", "weight_decay"):
        _value(settled, key, f"optimizer.params.{key}", params.get(key), beside.get(key), asked[key])
    clip = "gradient_clipping"
    _value(settled, clip, clip, content.get(clip), beside.get(clip), asked[clip])
    if content.get(clip) is None and beside.get(clip) is None:
        settled.notes.append(
            f"gradient_clipping is not set: the scenario's {asked[clip]:g} (DeepSpeed's own default is 0, no clipping)"
        )
    if content.get("scheduler") is not None:
        mapping("scheduler", content["scheduler"])
        settled.notes.append("scheduler: not used; the suite's learning rate is constant")
    return settled


def _value(settled: Settled, key: str, name: str, given: Any, beside: Any, asked: float) -> None:
    if given is None or is_auto(given):
        value = asked if beside is None or is_auto(beside) else real(name, beside)
        if is_auto(given):
            settled.notes.append(f"{name} auto -> {value:g}")
    else:
        value = real(name, given)
    if value != asked:
        settled.notes.append(f"{key} {value:g} is the configuration's, over the scenario's {asked:g}")
    settled.values[key] = value


def _take_params(settled: Settled, params: dict[str, Any]) -> None:
    for key, value in params.items():
        name = f"optimizer.params.{key}"
        if settled.impossible and key not in _PARAMS:
            continue  # another optimizer's
        if key in _NO_FIGURE:
            settled.notes.append(f"{name}: not used; which implementation of AdamW runs is the scenario's to say")
        elif key not in _PARAMS:
            raise ValueError(f"'{name}' is no parameter of AdamW{nearest(key, _PARAMS)}; valid: {', '.join(_PARAMS)}")
        elif is_auto(value):
            if key in ("betas", "eps"):
                settled.notes.append(f"{name} auto: the suite's AdamW keeps its own")
            elif key not in ("lr", "weight_decay"):
                settled.unresolved.append(name)
        elif key == "betas":
            if not isinstance(value, list) or len(value) != 2:
                raise ValueError(f"'{name}' takes two numbers (got {shown(value)})")
            settled.values["betas"] = [real(name, item) for item in value]
            if settled.values["betas"] != _BETAS:
                settled.notes.append(f"{name} {settled.values['betas']}: the suite's AdamW keeps its own, {_BETAS}")
        elif key == "eps":
            settled.values["eps"] = real(name, value)
            if settled.values["eps"] != _EPS:
                settled.notes.append(f"{name} {settled.values['eps']:g}: the suite's AdamW keeps its own, {_EPS:g}")
        elif key == "max_grad_norm":
            real(name, value)
            settled.notes.append(f"{name}: DeepSpeed does not read it there; gradient_clipping is the key")
        elif key in ("bias_correction", "adam_w_mode") and not switch(name, value):
            settled.impossible = f"{name} false: the suite updates with torch AdamW in every strategy"
        elif key == "amsgrad" and switch(name, value):
            settled.impossible = f"{name} true: the suite updates with torch AdamW in every strategy"
