"""What holds the memory of a rank: every live storage gets one category, from the real objects of the engine.

A category is found in this order: what an object of the engine holds (parameters, optimizer states, buckets,
gradients), what was handed to a collective, and for the rest the phase and module in which the storage was born.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.measure.memory import StorageMeter, nowhere
from bench.measure.modules import LOSS, ModuleTracker
from bench.measure.storage_log import Birth, StorageLog, on_device
from bench.worker.holdings import buckets, held
from bench.worker.offload import COPYING, OffloadWatch
from bench.zero.practice import CONTROL_ELEMENTS

_LET_GO_S = 0.01
# The strongest claim first: a storage that several categories claim belongs to the first of them.
_STRENGTH = (
    "parameters",
    "persisted_parameters",
    "optimizer_states",
    "zero_buckets",
    "gradients",
    "offload_buffers",
    "secondary_parameters",
    "gathered_parameters",
    "bucket_copies",
)


class Composition:
    """The memory of one optimizer step, decomposed. ``meter`` has been active since before the model existed."""

    def __init__(self, engine: Any, meter: StorageMeter, *, apart: bool = False) -> None:
        """Take the picture ``init``: the engine is built and has not stepped yet.

        ``apart``: whether storages say themselves what is host memory (bench.measure.places).
        """
        self._engine, self._meter = engine, meter
        self._modules = ModuleTracker(engine.module)
        self._phase = ""
        self._claims: dict[int, str] = {}
        self._moments: dict[str, int] = {}
        self._log = StorageLog({})
        self._steps: list[tuple[StorageLog, dict[str, int]]] = []
        self._offloaded: dict[str, int] | None = None
        self._offload = OffloadWatch(engine, meter, apart)
        gc.collect()  # what waits for it in cycles is held by nobody
        self._claim_held()
        self._offload.look("")
        self._init = meter.live()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Log one optimizer step; call ``enter_phase`` as it goes on. May be used for several steps."""
        params = [parameter for parameter in self._engine.module.parameters() if parameter.requires_grad]
        # What autograd hands to a parameter is a gradient, also one that is moved or freed before backward ends.
        hooks = [parameter.register_hook(self._claim_gradient) for parameter in params]
        self._meter.place, self._meter.watch = self._place, self._see
        self._log, self._moments = self._meter.begin_log(), {}
        self._offload.begin()
        try:
            with self._modules.active():
                yield
            time.sleep(_LET_GO_S)
            self._claim_held()
            self._offload.look("")
            self._moments["end"] = len(self._log)
            self._steps.append((self._log, self._moments))
        finally:
            self._meter.end_log()
            self._meter.place, self._meter.watch = nowhere, None
            self._phase = ""
            for hook in hooks:
                hook.remove()

    def enter_phase(self, phase: str) -> None:
        """Note the end of the phase before; of several micro-steps the last one's moments stay."""
        # gloo's threads let go of what a collective was handed only when they get Python's lock.
        time.sleep(_LET_GO_S)
        if self._phase:
            self._moments[self._phase] = len(self._log)
        self._claim_held()
        self._offload.look(phase)
        self._phase = phase

    def _place(self) -> tuple[str, str]:
        module = self._modules.current()
        if self._phase == "backward" and self._modules.in_forward:
            return "recomputation", module
        return self._phase, module

    def _claim(self, tensor: Any, category: str) -> None:
        if not isinstance(tensor, torch.Tensor) or (birth := self._meter.birth(tensor)) is None:
            return
        known = self._claims.get(birth.number, category)
        self._claims[birth.number] = min(known, category, key=_STRENGTH.index)

    def _claim_held(self) -> None:
        for category, tensors in held(self._engine).items():
            for tensor in tensors:
                self._claim(tensor, category)

    def _claim_gradient(self, gradient: torch.Tensor) -> None:
        self._claim(gradient, "gradients")

    def _see(self, op: str, args: tuple[Any, ...]) -> None:
        self._offload.see(op, args)
        if op not in COPYING:
            self._claim_handed(op, args)

    def _claim_handed(self, op: str, args: tuple[Any, ...]) -> None:
        for bucket in buckets(self._engine):
            self._claim(bucket, "zero_buckets")
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if sum(tensor.numel() for tensor in tensors) <= CONTROL_ELEMENTS:
            return
        for tensor in tensors:
            self._claim(tensor, "gathered_parameters" if "gather" in op else "bucket_copies")

    def _highest_step(self) -> tuple[StorageLog, dict[str, int], int]:
        """Return the recorded step whose peak is the highest, and the moment of that."""
        steps = ((log, moments, log.highest(0, moments["end"])) for log, moments in self._steps)
        return max(steps, key=lambda step: sum(size for each, size in step[0].live(step[2]).items() if on_device(each)))

    def settled(self) -> None:
        """Call when nothing of the recorded step is left, its batches neither."""
        log, moments = self._steps[-1]
        self._offloaded = self._offload.found(log, moments["end"], self._meter.live(), self._category)

    def offload(self) -> dict[str, int] | None:
        """Return the content of ``bench.record.RankOffload`` for the last step; ``None`` where nothing is offloaded."""
        return self._offloaded

    def points(self) -> list[dict[str, Any]]:
        """Return the content of ``bench.record.MemoryPoint`` for init, forward, backward, step and peak.

        They are those of the recorded step whose peak is highest.
        """
        log, moments, peak = self._highest_step()
        step = log.highest(moments["backward"], moments["end"])
        found = [self._point("init", "engine built", self._init)]
        for name, moment, where in (
            ("forward", moments["forward"], "end of forward"),
            ("backward", moments["backward"], "end of backward"),
            ("step", step, _where(log.newest(step))),
            ("peak", peak, _where(log.newest(peak))),
        ):
            found.append(self._point(name, where, log.live(moment)))
        return found

    def _point(self, name: str, where: str, live: dict[Birth, int]) -> dict[str, Any]:
        counted: dict[str, int] = {}
        host: dict[str, int] = {}
        for storage, size in live.items():
            category = self._category(storage)
            if on_device(storage):
                counted[category] = counted.get(category, 0) + size
            if self._offload.active and self._offload.is_host(storage, category):
                host[category] = host.get(category, 0) + size
        total = sum(counted.values())
        return {"point": name, "where": where, "total_bytes": total, "bytes": counted, "host_bytes": host}

    def _category(self, storage: Birth) -> str:
        return self._claims.get(storage.number) or self._by_birth(storage)

    def _by_birth(self, storage: Birth) -> str:
        if storage.phase == "step":
            return "step_temporaries"
        if not storage.module:
            return "other"
        head = self._modules.head
        if head and (storage.module in (LOSS, head) or storage.module.startswith(f"{head}.")):
            return "logits_loss"
        return "backward_temporaries" if storage.phase == "backward" else "activations"


def _where(newest: Birth | None) -> str:
    if newest is None:
        return "before the step"
    return f"{newest.phase}: {newest.module}" if newest.module else newest.phase
