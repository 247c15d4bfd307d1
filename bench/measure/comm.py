"""Count the collectives that a rank issues, at PyTorch's dispatcher, where every one of them passes.

DeepSpeed's own communication logger is not used: it synchronises each operation, and mixes shard and full
sizes (docs/metrics.md says more).
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# c10d's dispatcher names -> the names that torch.distributed documents.
_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
}
_NOT_COLLECTIVES = {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}


@dataclass(frozen=True)
class Collective:
    """One collective of one rank, in issue order.

    ``num_elements`` and ``num_bytes`` are those of the larger side: the gathered output of an all-gather, the
    full input of a reduce-scatter. ``during_autograd``: issued from inside the backward graph, so it can
    overlap with the rest of backward; otherwise the rank has nothing left to compute meanwhile. ``group``: whether
    the ranks of its group are on more than one node.
    """

    phase: str
    op: str
    dtype: str
    num_elements: int
    num_bytes: int
    group_size: int
    during_autograd: bool
    group: str = "intra-node"


def nodes_of_ranks() -> list[str]:
    """Return a name for the node of every rank, in rank order; ranks may be placed in any order. All must call it.

    DeepSpeed's launcher says the node as CROSS_RANK, torchrun as GROUP_RANK; otherwise the host's name tells it.
    """
    mine = os.environ.get("CROSS_RANK") or os.environ.get("GROUP_RANK") or socket.gethostname()
    nodes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, mine)
    return nodes


def _tensors(argument: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(argument) if isinstance(leaf, torch.Tensor)]


def _group_ranks(args: Sequence[Any]) -> list[int]:
    for argument in args:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in argument._type().qualified_name():
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument))
    return list(range(dist.get_world_size()))


class CollectiveRecorder(TorchDispatchMode):
    """While active, append every collective of this process to ``events``. Set ``phase`` as the step goes on.

    An operation of the ``c10d`` namespace that is not known here is recorded under its own name, with the
    bytes of its largest argument: better an odd row than a missing one.
    """

    def __init__(self, nodes: Sequence[str] = ()) -> None:
        """``nodes`` is what `nodes_of_ranks` returned; without it all ranks are taken to be on one node."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes = nodes
        self.phase = ""
        self.events: list[Collective] = []

    def enter_phase(self, phase: str) -> None:
        """Tag what follows with ``phase``."""
        self.phase = phase

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.before(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See an operator that is about to run; the emulator calls this instead of being below this mode."""
        if func.namespace == "c10d":
            self._record(func._schema.name.removeprefix("c10d::"), (*args, *kwargs.values()))
        elif func.namespace == "_c10d_functional" and func._schema.name not in _NOT_COLLECTIVES:
            # torch's functional collectives do not pass c10d here; no wire model knows their names yet.
            self._record(func._schema.name.replace("_c10d_functional::", "functional."), args)

    def after(self, func: Any, result: Any) -> None:
        """See what an operator returned: nothing to count."""

    def _record(self, name: str, args: tuple[Any, ...]) -> None:
        op = _NAMES.get(name, name)
        sides = [tensors for argument in args if (tensors := _tensors(argument))]
        larger = max(sides, key=lambda side: sum(t.nbytes for t in side), default=[])
        if op == "barrier":
            larger = []  # it carries a dummy tensor, no data
        ranks = _group_ranks(args)
        self.events.append(
            Collective(
                phase=self.phase,
                op=op,
                dtype=str(larger[0].dtype).removeprefix("torch.") if larger else "",
                num_elements=sum(t.numel() for t in larger),
                num_bytes=sum(t.nbytes for t in larger),
                group_size=len(ranks),
                during_autograd=torch._C._current_graph_task_id() != -1,
                group="inter-node" if self.nodes and len({self.nodes[rank] for rank in ranks}) > 1 else "intra-node",
            )
        )
