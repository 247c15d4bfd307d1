"""Bytes that a collective puts on the wire, under a model of how each backend does it.

Per rank, sent bytes, averaged over the ranks of the group, as a factor of the collective's larger side.
Ring factors: nccl-tests, doc/PERFORMANCE.md. Gloo has no true reduce-scatter: on a link between two network
namespaces its ``reduce_scatter_tensor`` sent exactly what its ``all_reduce`` sends, and ``reduce`` as much.
"""

from collections.abc import Callable

_Factor = Callable[[int], float]


def _once(n: int) -> float:
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * (n - 1) / n


_RING: dict[str, _Factor] = {
    "all_reduce": _twice,
    "all_gather": _once,
    "all_gather_into_tensor": _once,
    "reduce_scatter": _once,
    "reduce_scatter_tensor": _once,
    "reduce": _once,
    "broadcast": _once,
    "gather": _once,
    "scatter": _once,
    "all_to_all": _once,
    "all_to_all_single": _once,
    "barrier": lambda n: 0.0,
}
_GLOO = _RING | {"reduce_scatter": _twice, "reduce_scatter_tensor": _twice, "reduce": _twice}
WIRE_MODELS = {"gloo": ("gloo", _GLOO), "nccl": ("ring", _RING)}


def wire_model(backend: str) -> str:
    """Return the name of the wire model used for ``backend`` (a plain ring where there is no better one)."""
    return WIRE_MODELS.get(backend, WIRE_MODELS["nccl"])[0]


def wire_bytes(op: str, num_bytes: int, group_size: int, backend: str) -> float | None:
    """Bytes that each rank sends for one collective; ``None`` for an operation the model does not know."""
    factor = WIRE_MODELS.get(backend, WIRE_MODELS["nccl"])[1].get(op)
    return None if factor is None else factor(group_size) * num_bytes
