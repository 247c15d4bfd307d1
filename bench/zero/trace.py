"""The order in which DeepSpeed's stage 3 sees the modules of one micro-step: every fetch and every release.

DeepSpeed 0.19.8, ``runtime/zero/parameter_offload.py``: ``_register_deepspeed_module`` hangs a fetch before and a
release after each module's forward, and the same around its backward by functions on its outputs and inputs.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from bench.models.modules import Module, calls


class Event(NamedTuple):
    """One call of the coordinator. ``forward`` is DeepSpeed's flag, also true in a recomputation within backward."""

    kind: Literal["fetch", "release"]
    module: Module
    forward: bool
    phase: Literal["forward", "backward"]


Checkpointing = bool | Literal["reentrant"]


def micro_step(model: Module, activation_checkpointing: Checkpointing) -> list[Event]:
    """Return the events of one forward and backward pass, in order."""
    return [*_forward(model, "forward"), *_backward(model, activation_checkpointing)]


def _forward(module: Module, phase: Literal["forward", "backward"]) -> Iterator[Event]:
    yield Event("fetch", module, True, phase)
    for child in module.children:
        yield from _forward(child, phase)
    yield Event("release", module, True, phase)


def _backward(module: Module, checkpointing: Checkpointing) -> Iterator[Event]:
    """Yield the events of backward, the mirror of forward.

    A module whose inputs carry no gradient (an embedding) has nothing that could call its release: DeepSpeed lets it go
    when backward is over (``release_backward_leftovers``).
    """
    if checkpointing and module.block:
        again = _backward_reentrant if checkpointing == "reentrant" else _backward_with_recompute
        yield from again(module)
        return
    yield Event("fetch", module, False, "backward")
    for child in reversed(module.children):
        if child.differentiable:
            yield from _backward(child, checkpointing)
    if module.grad_input:
        yield Event("release", module, False, "backward")


def _backward_with_recompute(block: Module) -> Iterator[Event]:
    """Backward of a block under non-reentrant checkpointing.

    It is recomputed when the first saved tensor is asked for: after the fetch of the last module that saves one.
    transformers 5 checkpoints the block's ``forward``, not its call, so only the hooks of its children run again; torch
    stops the recomputation as soon as the last saved tensor is there (``torch.utils.checkpoint``, early stop), inside
    the forward of that same last module, whose release is then never called.
    """
    last = next(module for module in reversed(list(calls(block))) if module.saves and not module.children)
    for event in _backward(block, checkpointing=False):
        yield event
        if event.kind == "fetch" and event.module.name == last.name:
            yield from _recompute(block, last)


def _backward_reentrant(block: Module) -> Iterator[Event]:
    """Backward of a block under reentrant checkpointing: its whole forward again, then backward.

    ``torch.utils.checkpoint``, ``CheckpointFunction``.
    """
    first, *rest = _backward(block, checkpointing=False)
    yield first
    for child in block.children:
        yield from _forward(child, "backward")
    yield from rest


def _recompute(block: Module, last: Module) -> Iterator[Event]:
    for child in block.children:
        for event in _forward(child, "backward"):
            yield event
            if event.kind == "fetch" and event.module.name == last.name:
                return
