"""Which module of the model is at work: in forward by hooks, in backward by the node of the graph that runs."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

LOSS = "loss"


class ModuleTracker:
    """Name the module that runs, as ``named_modules`` names it; ``""`` where none is known.

    What the model around its output embedding computes after that is the loss, and is named so. In backward a node
    belongs to the module during whose forward it was made: torch numbers nodes in the order they are made.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        self.head = self._names.get(id(head), "") if head is not None else ""
        self._root = id(model)
        # Under adapters the model that computes the loss is not the outermost.
        around = [name for name in self._names.values() if self.head.startswith(f"{name}.")]
        self._around_head = {self._root, *(key for key, name in self._names.items() if name in around)}
        self._running: list[nn.Module] = []
        self._head_ran = False
        self._made: list[tuple[int, str]] = []  # nodes from this number on were made in this module

    @contextmanager
    def active(self) -> Iterator[None]:
        """Follow the forward calls of every module while the ``with`` body runs."""
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if id(module) == self._root and not in_autograd():
            self._head_ran = False
            self._made.clear()
        self._running.append(module)
        self._note()

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        while self._running and self._running.pop() is not module:
            pass  # modules that an exception ended: recomputation stops early with one
        self._head_ran |= bool(self.head) and self._names.get(id(module)) == self.head
        self._note()

    def _note(self) -> None:
        if not in_autograd():
            self._made.append((torch._C._autograd._get_sequence_nr(), self._innermost()))

    def _innermost(self) -> str:
        for module in reversed(self._running):
            if id(module) in self._around_head:
                return LOSS if self._head_ran else ""
            if id(module) in self._names:
                return self._names[id(module)]
        return ""

    @property
    def in_forward(self) -> bool:
        """Whether a forward call is under way; inside backward, that is recomputation."""
        return bool(self._running)

    def current(self) -> str:
        """Return the name of the module at work."""
        if self._running:
            return self._innermost()
        node: Any = torch._C._current_autograd_node() if in_autograd() else None
        if node is None:
            return ""
        # A parameter's own node has the highest number there is, and belongs to no module.
        if node.name() == "torch::autograd::AccumulateGrad":
            return ""
        made_before = bisect_right(self._made, node._sequence_nr(), key=lambda entry: entry[0])
        return self._made[made_before - 1][1] if made_before else ""


def in_autograd() -> bool:
    """Whether this is inside the run of a backward graph."""
    return torch._C._current_graph_task_id() != -1
