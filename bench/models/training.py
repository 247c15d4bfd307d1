"""Which parameters of a model are trained: all, adapters beside frozen layers (LoRA), or those that a glob matches.

The module tree of bench.models.modules as the training sees it: with peft's adapters in it (peft 0.21,
``tuners/lora/layer.py``, ``Linear``), with frozen parameters marked, and with what carries a gradient. No torch.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from bench.models.counts import ParamCount, count_params
from bench.models.modules import Module, Parameter, calls, modules, parameters
from bench.scenario import Freeze, Lora

ALL_LINEAR = "all-linear"
_HEAD = "lm_head"


def trained_modules(
    config: dict[str, Any], lora: Lora | None, freeze: Freeze | None, *, input_gradients: bool = False
) -> Module | None:
    """Return the module tree of the model that ``config`` describes, as it is trained; ``None`` if not known.

    ``input_gradients``: the embedding's output is made to require a gradient though the embedding may be frozen, as
    transformers 5 does wherever activations are recomputed (``modeling_utils.py``, ``enable_input_require_grads``).
    """
    tree = modules(config)
    if tree is None or (lora is not None and _targets(tree, lora) is None):
        return None
    if lora is not None:
        tree = _with_adapters(tree, lora)
    if freeze is not None:
        tree = _frozen(tree, freeze.trainable)
    return _with_gradients(tree, False, input_gradients)


def count_trained(config: dict[str, Any], lora: Lora | None, freeze: Freeze | None) -> ParamCount | None:
    """Return the parameter counts with adapters in them; ``trainable`` is set where not all are trained."""
    whole = count_params(config)
    if whole is None or (lora is None and freeze is None):
        return whole
    tree = trained_modules(config, lora, freeze)
    if tree is None:
        return None
    held = parameters(tree)
    added = sum(parameter.numel for parameter in held) - whole.total
    return ParamCount(
        total=whole.total + added,
        active=whole.active + added,
        embedding=whole.embedding,
        trainable=sum(parameter.numel for parameter in held if parameter.trainable),
    )


def nothing_to_train(config: dict[str, Any], lora: Lora | None, freeze: Freeze | None) -> str | None:
    """Return which name of ``lora`` or ``freeze`` this model has nothing for; ``None`` if all do or it is not known."""
    tree = modules(config)
    if tree is None:
        return None
    kind = config["model_type"]
    if lora is not None:
        below = [module.name for module in calls(tree)]
        for name in lora.target_modules:
            if name != ALL_LINEAR and not any(_is(module, name) for module in below):
                return f"lora.target_modules: {kind} has no module '{name}'"
    if freeze is not None:
        names = [parameter.name for parameter in parameters(tree)]
        for glob in freeze.trainable:
            if not any(fnmatchcase(name, glob) for name in names):
                return f"freeze.trainable: '{glob}' matches no parameter of {kind} (its first is {names[0]})"
    return None


def _is(module: str, target: str) -> bool:
    """As peft matches names: the whole, or its end after a point."""
    return module == target or module.endswith(f".{target}")


def _targets(tree: Module, lora: Lora) -> set[str] | None:
    """Return the names of the modules that get an adapter; ``None`` where one is no linear layer of the tree.

    A mixture of experts is one module here, and peft finds linear layers in it (the router) by rules of its own.
    """
    found: set[str] = set()
    for module in calls(tree):
        if module.leaf:
            return None
        if ALL_LINEAR in lora.target_modules and module.shape is not None and module.name != _HEAD:
            found.add(module.name)
        if any(_is(module.name, name) for name in lora.target_modules):
            if module.shape is None:
                return None
            found.add(module.name)
    return found


def _with_adapters(tree: Module, lora: Lora) -> Module:
    """Freeze all, put adapters beside the targets, and the two modules around it all that peft puts there."""
    targets = _targets(tree, lora) or set()

    def frozen(parameter: Parameter) -> Parameter:
        # Room in the order of parameters for the adapter's two, which come after the layer's own.
        return replace(parameter, position=3 * parameter.position, trainable=False)

    def adapted(module: Module) -> Module:
        module = replace(
            module,
            parameters=tuple(frozen(parameter) for parameter in module.parameters),
            children=tuple(adapted(child) for child in module.children),
        )
        return _adapter(module, lora) if module.name in targets else module

    inner = replace(adapted(tree), name="base_model.model")
    return Module("", children=(Module("base_model", children=(inner,), grad_input=False),), grad_input=False)


def _adapter(layer: Module, lora: Lora) -> Module:
    """Return peft's layer around ``layer``: the layer, then dropout, A and B on the same input."""
    assert layer.shape is not None
    (inputs, outputs), last = layer.shape, layer.parameters[-1].position
    down = Parameter(f"{layer.name}.lora_A.default.weight", lora.r * inputs, last + 1)
    up = Parameter(f"{layer.name}.lora_B.default.weight", outputs * lora.r, last + 2)
    dropout = Module(f"{layer.name}.lora_dropout.default", saves=lora.lora_dropout > 0, from_parent=True)
    children = (
        replace(layer, name=f"{layer.name}.base_layer", from_parent=True),
        dropout,
        Module(f"{layer.name}.lora_A.default", (down,), from_parent=True),
        Module(f"{layer.name}.lora_B.default", (up,)),
    )
    return Module(layer.name, children=children, from_parent=layer.from_parent)


def _frozen(module: Module, trainable: tuple[str, ...]) -> Module:
    return replace(
        module,
        parameters=tuple(
            replace(parameter, trainable=any(fnmatchcase(parameter.name, glob) for glob in trainable))
            for parameter in module.parameters
        ),
        children=tuple(_frozen(child, trainable) for child in module.children),
    )


def _with_gradients(module: Module, given: bool, input_gradients: bool) -> Module:
    """Mark what carries a gradient: ``given`` says whether what the module is given does.

    A frozen module passes a gradient on, and saves what it needs for that; one that is given none has no backward.
    """
    if not module.differentiable:
        return module
    carries, children = given, []
    for child in module.children:
        children.append(_with_gradients(child, given if child.from_parent else carries, input_gradients))
        carries = carries or children[-1].differentiable
    forced = input_gradients and module.embeds
    differentiable = carries or forced or any(parameter.trainable for parameter in module.parameters)
    return replace(
        module,
        children=tuple(children),
        differentiable=differentiable,
        grad_input=module.grad_input and given,
        saves=module.saves and differentiable,
    )
