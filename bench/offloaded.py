"""What the ranks found in host memory -> what the record says of offload."""

from typing import Any

from bench.plan import PlannedCell
from bench.record import Offload, RankOffload
from bench.zero.offload import offload


def offloaded(planned: PlannedCell, ranks: list[dict[str, Any]]) -> Offload | None:
    """Return the section of the record; ``None`` where nothing is offloaded, or nothing was seen of it."""
    found = [RankOffload.model_validate(rank["offload"]) for rank in ranks if rank.get("offload")]
    if not found:
        return None
    emulation, params = planned.cell.emulation, planned.params
    first = emulation.rank if emulation is not None else 0
    apart = emulation is not None and emulation.apart
    predicted = [
        offload(planned.cell, planned.config, params, number, apart=apart) if params else {}
        for number in range(first, first + len(found))
    ]
    if emulation is not None:  # the node is full of ranks like this one
        together = found[0].host_peak_bytes * min(emulation.gpus_per_node, planned.cell.world_size)
    else:
        by_node: dict[int, int] = {}
        for rank, memory in zip(ranks, found, strict=True):
            by_node[rank["node"]] = by_node.get(rank["node"], 0) + memory.host_peak_bytes
        together = max(by_node.values())
    return Offload(ranks=found, predicted=predicted, node_host_peak_bytes=together)
