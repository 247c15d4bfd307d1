"""What of a rank's memory is the host's, and what crosses between host and device in one optimizer step.

Where host and device are told apart (an emulated GPU, bench.emulate.places) both are seen. In a real run on a CPU all
memory is one: what DeepSpeed's own objects keep on the host of a GPU machine is then attributed to it, by the object
that owns the storage, and a crossing is a copy between storages of two owners, or a host storage that is handed to a
collective or converted outside the optimizer step, which a GPU could not do before it is brought over. DeepSpeed's
attributes are named as in 0.19.8.
"""

from collections.abc import Callable
from typing import Any

import torch

from bench.measure.memory import StorageMeter
from bench.measure.places import moved_bytes
from bench.measure.places import on_host as noted_on_host
from bench.measure.storage_log import Birth, StorageLog
from bench.worker.holdings import STAGE_3, attributes, masters_and_moments, owners, tensors_in
from bench.zero.practice import CONTROL_ELEMENTS

# Operators that copy content, as `StorageMeter.watch` calls them.
COPYING = ("copy_", "_to_copy", "cat")
_OF_OPTIMIZER = (
    "param_buffer_of_bit16_for_cpu_offload_groups",
    "temp_grad_buffer_for_cpu_offload",
    "accumulated_grads_in_cpu",
    "grad_partitions_flat_buffer",
    f"{STAGE_3}param_id_to_grad_partition",
)


def _offloads(engine: Any) -> tuple[bool, bool]:
    """Return whether the engine keeps optimizer states, and whether it keeps parameters, on the host."""
    wrapper = getattr(engine, "optimizer", None)
    optimizer = getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False)
    return bool(optimizer), bool(getattr(wrapper, "offload_param", False))


def _owned_by_host(engine: Any) -> list[torch.Tensor]:
    """Return what the engine would keep on the host of a GPU machine."""
    optimizer, params = _offloads(engine)
    found: list[torch.Tensor] = []
    if optimizer:
        states = masters_and_moments(engine)
        found += [*states, *(state.grad for state in states if state.is_leaf and state.grad is not None)]
        found += attributes(owners(engine), _OF_OPTIMIZER)
    if params:
        found += attributes(owners(engine), ("param_groups_fp16_flat_cpu_memory",))
        for param in engine.module.parameters():
            if not getattr(param, "ds_persist", False):
                found += tensors_in(getattr(param, "ds_tensor", None))
    return found


def _pinned_by_host(engine: Any) -> list[torch.Tensor]:
    """Return what of that is in page-locked memory: all but Adam's moments, which the optimizer itself makes."""
    wrapper = getattr(engine, "optimizer", None)
    found: list[torch.Tensor] = []
    if getattr(wrapper, "cpu_offload_pin_memory", False):
        masters = attributes([wrapper], ("single_partition_of_fp32_groups",))
        found += masters + [master.grad for master in masters if master.grad is not None]
        found += attributes([wrapper], _OF_OPTIMIZER)
    if getattr(wrapper, "offload_optimizer_pin_memory", False):
        masters = attributes([wrapper], ("fp32_partitioned_groups_flat",))
        found += [master.grad for master in masters if master.grad is not None]
        found += attributes([wrapper], ("grad_partitions_flat_buffer",))
    if getattr(wrapper, "offload_param_pin_memory", False):
        found += attributes([wrapper], ("param_groups_fp16_flat_cpu_memory",))
    return found


class OffloadWatch:
    """Tells host from device in the counted steps of one rank."""

    def __init__(self, engine: Any, meter: StorageMeter, apart: bool) -> None:
        """``apart``: whether the storages themselves say where they are."""
        self._engine, self._meter, self._apart = engine, meter, apart
        self.optimizer, self.params = _offloads(engine)
        self._host: set[int] = set()
        self._phase = ""
        self._over: set[tuple[int, int, int]] = set()
        self._crossed = {"host_to_device_bytes": 0, "device_to_host_bytes": 0}

    @property
    def active(self) -> bool:
        """Whether the rank keeps anything on the host that it could keep on the device."""
        return self.optimizer or self.params

    def begin(self) -> None:
        """A counted step begins."""
        self._crossed = dict.fromkeys(self._crossed, 0)

    def look(self, phase: str) -> None:
        """Note who owns what now; ``phase`` begins."""
        self._phase = phase
        self._over.clear()
        if self._apart or not self.active:
            return
        births = (self._meter.birth(tensor) for tensor in _owned_by_host(self._engine))
        self._host |= {birth.number for birth in births if birth is not None}

    def is_host(self, storage: Birth, category: str) -> bool:
        """Whether ``storage``, which has ``category``, is the host's."""
        if self._apart:
            return storage.host is not None
        return storage.number in self._host or (self.optimizer and category == "step_temporaries")

    def _on_host(self, tensor: torch.Tensor) -> bool:
        if self._apart:
            return noted_on_host(tensor)
        birth = self._meter.birth(tensor)
        return birth is not None and birth.number in self._host

    def see(self, op: str, args: tuple[Any, ...]) -> None:
        """See a copy or a collective before it runs."""
        if not self.active:
            return
        if op == "copy_":
            target, source, *rest = args
            to_host = self._on_host(target)
            if source.numel() > CONTROL_ELEMENTS and to_host != self._on_host(source):
                size = moved_bytes(target, source, to_host=to_host, non_blocking=bool(rest and rest[0]))
                self._crossed["device_to_host_bytes" if to_host else "host_to_device_bytes"] += size
        elif not self._apart:
            self._brought_over(op, args)

    def _brought_over(self, op: str, args: tuple[Any, ...]) -> None:
        if op in COPYING and self._phase == "step":  # the host's own work
            return
        handed = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        for tensor in handed:
            if tensor.numel() <= CONTROL_ELEMENTS or not self._on_host(tensor):
                continue
            # What is converted twice, for its norm too, was brought over once.
            part = (tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel())
            if op == "_to_copy" and part in self._over:
                continue
            self._over.add(part)
            self._crossed["host_to_device_bytes"] += tensor.numel() * tensor.element_size()

    def found(
        self, log: StorageLog, end: int, settled: dict[Birth, int], category: Callable[[Birth], str]
    ) -> dict[str, int] | None:
        """Return the content of ``bench.record.RankOffload`` for the step that ``log`` holds up to ``end``.

        ``settled``: what is live when nothing of the step is left.
        """
        if not self.active:
            return None

        def host(storage: Birth) -> bool:
            return self.is_host(storage, category(storage))

        def device(storage: Birth) -> bool:
            return not host(storage)

        def peak(counts: Callable[[Birth], bool]) -> int:
            return total(log.live(log.highest(0, end, counts)), counts)

        def total(live: dict[Birth, int], counts: Callable[[Birth], bool]) -> int:
            return sum(size for storage, size in live.items() if counts(storage))

        return {
            "device_peak_bytes": peak(device),
            "device_steady_bytes": total(settled, device),
            "host_peak_bytes": peak(host),
            "host_steady_bytes": total(settled, host),
            "pinned_bytes": self._pinned_bytes(settled),
            **self._crossed,
        }

    def _pinned_bytes(self, live: dict[Birth, int]) -> int:
        if self._apart:
            return sum(size for storage, size in live.items() if storage.host == "pinned")
        births = {self._meter.birth(tensor) for tensor in _pinned_by_host(self._engine)}
        return sum(size for storage, size in live.items() if storage in births)
