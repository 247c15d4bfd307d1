"""What one optimizer step ran: operators with FLOPs and bytes, collectives, and phases, in order.

The file (JSON, gzip) holds each distinct operator once and the order as numbers, so that a step of a 70B model takes
less than ten kilobytes. It is what a model of time needs.
"""

import dataclasses
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.emulate.emulator import Emulator
from bench.measure.comm import CollectiveRecorder
from bench.measure.memory import COPIES

TRACE_VERSION = 1


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, backward: bool) -> int:
    """Return the FLOPs of attention: 2 matrix products forward, 5 backward (scores again, and 4 gradients).

    The whole square of scores is counted, as torch.utils.flop_counter counts it for its GPU kernels.
    """
    batch, heads, length, width = query.shape
    product = 2 * batch * heads * length * key.shape[2]
    return int(product * (3 * width + 2 * value.shape[3]) if backward else product * (width + value.shape[3]))


def _grouped_flops(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return the FLOPs of ``_grouped_mm``: of each row, or column, only those of the one group that it belongs to."""
    columns_are_grouped = left.dim() == 3 and right.dim() == 2
    return 2 * left.numel() * right.shape[-1] // (left.shape[0] if columns_are_grouped else 1)


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the floating-point operations of one call, a multiplication and an addition counted as two.

    Matrix products and attention only: by torch.utils.flop_counter's formulas, and for what it does not know (attention
    on CPU, grouped products) by like ones. Elementwise work is bound by bytes.
    """
    name = func._schema.name
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu":
        return _attention_flops(args[0], args[1], args[2], backward=False)
    if name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward":
        return _attention_flops(args[1], args[2], args[3], backward=True)
    if name == "aten::_grouped_mm":
        return _grouped_flops(args[0], args[1])
    formula = flop_registry.get(func.overloadpacket)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0


def _tensor_bytes(values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


class Trace:
    """Follow one step. ``order``: numbers of ``operators`` from 0 up, and of ``collectives`` from -1 down, in order."""

    def __init__(self) -> None:
        self.operators: list[dict[str, Any]] = []
        self.order: list[int] = []
        self.phases: list[tuple[int, str]] = []
        self.collectives: list[dict[str, Any]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._recorder: CollectiveRecorder | None = None

    @contextmanager
    def following(self, emulator: Emulator, recorder: CollectiveRecorder) -> Iterator[None]:
        """Follow what ``emulator`` runs while the ``with`` body runs; ``recorder``, which sees collectives before."""
        self._recorder = recorder
        emulator.listener = self._see
        try:
            with emulator.observed_by(self):
                yield
        finally:
            emulator.listener = None
            self.collectives = [dataclasses.asdict(event) for event in recorder.events]
            self._recorder = None

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See a collective, which the recorder has just counted, or a copy, which is an operator like any other."""
        if id(func) in COPIES:
            return
        assert self._recorder is not None
        self._enter(self._recorder.phase)
        self.order.append(-len(self._recorder.events))

    def after(self, func: Any, result: Any) -> None:
        """See what an operator returned: nothing to note."""

    def _enter(self, phase: str) -> None:
        if not self.phases or self.phases[-1][1] != phase:
            self.phases.append((len(self.order), phase))

    def _see(self, key: tuple[Any, ...], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        assert self._recorder is not None
        self._enter(self._recorder.phase)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.operators)
            dtypes = [leaf.dtype for leaf in tree_leaves((result, args)) if isinstance(leaf, torch.Tensor)]
            self.operators.append(
                {
                    "op": str(func).removeprefix("aten."),
                    "dtype": str(dtypes[0]).removeprefix("torch.") if dtypes else "",
                    "flops": flops(func, args, kwargs, result),
                    # Every argument read once and every result written once; what is written to is in both.
                    "bytes": _tensor_bytes((args, kwargs)) + _tensor_bytes(result),
                }
            )
        self.order.append(number)

    def flops(self) -> int:
        """Return the FLOPs of the step."""
        return sum(self.operators[number]["flops"] for number in self.order if number >= 0)

    def write(self, path: Path) -> None:
        """Write the trace as one gzip'd JSON object."""
        content = {
            "trace_version": TRACE_VERSION,
            "operators": self.operators,
            "collectives": self.collectives,
            "phases": self.phases,
            "order": self.order,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
