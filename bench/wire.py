"""Bytes that a collective puts on the wire, under a model of how each backend does it.

``ring`` (NCCL): nccl-tests, doc/PERFORMANCE.md; what a rank sends, mean over the ranks. A reduce or a broadcast
passes the whole along a chain; a gather or a scatter is one share from or to every rank but the root.

``gloo``: which rank sends how much to which, as its source has it (github.com/pytorch/gloo: allreduce.cc,
allgather.cc, reduce.cc, broadcast.cc, gather.cc, scatter.cc, alltoall.cc) and as it was measured on a link between
two network namespaces (tests/integration/test_veth.py; docs/metrics.md has the figures). Its rings follow the order
of the ranks. torch's ``reduce_scatter_tensor`` on gloo is an all-reduce on the wire. Payload only: gloo's preambles
and the packets' headers come on top.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

# (sending rank, receiving rank) -> bytes, of one collective; ranks within the group, rank 0 is the root.
Sends = dict[tuple[int, int], float]

_GLOO_SEGMENT_BYTES = 2**20  # kMaxSegmentSize of gloo/reduce.h


def _chain(n: int) -> float:
    return (n - 1) / n


def _share(n: int) -> float:
    return (n - 1) / n**2


_RING: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": _chain,
    "all_gather_into_tensor": _chain,
    "reduce_scatter": _chain,
    "reduce_scatter_tensor": _chain,
    "reduce": _chain,
    "broadcast": _chain,
    "gather": _share,
    "scatter": _share,
    "all_to_all": _chain,
    "all_to_all_single": _chain,
    "barrier": lambda n: 0.0,
}


def _ring(n: int, step: int, num_bytes: float) -> Sends:
    return {(rank, (rank + step) % n): num_bytes for rank in range(n)}


def gloo_sends(op: str, num_bytes: int, group_size: int) -> Sends | None:
    """Which rank sends how many bytes to which for one collective; ``None`` for an operation not known.

    ``num_bytes`` is the larger side; rooted operations have rank 0 as root.
    """
    n, share = group_size, num_bytes / group_size
    others = range(1, n)
    match op:
        case "all_reduce" | "reduce_scatter" | "reduce_scatter_tensor":
            return _ring(n, -1, 2 * (n - 1) * share)
        case "all_gather" | "all_gather_into_tensor":
            return _ring(n, 1, (n - 1) * share)
        case "reduce":
            # A ring in at least 2n segments, of which each rank sends all but its own last two; then a gather.
            segment = min(num_bytes / (2 * n), _GLOO_SEGMENT_BYTES)
            sends = _ring(n, -1, num_bytes - 2 * segment if n > 1 else 0.0)
            return sends | {(rank, 0): sends.get((rank, 0), 0.0) + share for rank in others}
        case "broadcast":  # a binomial tree: the parent of a rank is the rank without its highest bit
            return {(rank ^ (1 << rank.bit_length() - 1), rank): float(num_bytes) for rank in others}
        case "gather":
            return {(rank, 0): share for rank in others}
        case "scatter":
            return {(0, rank): share for rank in others}
        case "all_to_all" | "all_to_all_single":
            return {(rank, peer): share for rank in range(n) for peer in range(n) if peer != rank}
        case "barrier":
            return {}
    return None


def wire_model(backend: str) -> str:
    """Return the name of the wire model used for ``backend`` (a plain ring where there is no better one)."""
    return "gloo" if backend == "gloo" else "ring"


def wire_bytes(op: str, num_bytes: int, group_size: int, backend: str) -> float | None:
    """Bytes that a rank sends for one collective, mean over the group; ``None`` for an operation not known."""
    if wire_model(backend) == "gloo":
        sends = gloo_sends(op, num_bytes, group_size)
        return None if sends is None else sum(sends.values()) / group_size
    factor = _RING.get(op)
    return None if factor is None else factor(group_size) * num_bytes


def node_bytes(op: str, num_bytes: int, nodes: Sequence[int], backend: str) -> dict[tuple[int, int], float] | None:
    """Bytes that go from one node to another for one collective: (from, to) -> bytes.

    ``nodes[r]`` is the node of the group's rank r. ``None`` where that is not known: for other backends than gloo,
    since NCCL orders its rings by the topology that it finds, and may use trees.
    """
    sends = gloo_sends(op, num_bytes, len(nodes)) if wire_model(backend) == "gloo" else None
    if sends is None:
        return None
    between: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (sender, receiver), sent in sends.items():
        if nodes[sender] != nodes[receiver]:
            between[nodes[sender], nodes[receiver]] += sent
    return dict(between)


def link_bytes(op: str, num_bytes: int, nodes: Sequence[int], backend: str) -> float | None:
    """Bytes on the busiest link for one collective: those of the pair of nodes, and the direction, with the most.

    ``None`` as in `node_bytes`; 0 if all ranks share a node.
    """
    between = node_bytes(op, num_bytes, nodes, backend)
    return None if between is None else max(between.values(), default=0.0)
