"""Which parameters DeepSpeed's stage 3 gathers, when, and in which calls: its coordinator's rules over a module trace.

Rules of DeepSpeed 0.19.8. Fetch, prefetch, release and the limits: ``runtime/zero/partitioned_param_coordinator.py``
(``_fetch_sub_module_impl``, ``release_sub_module``, ``__params_to_release``, ``reset_step``). Persistent parameters:
``runtime/zero/parameter_offload.py`` (``mark_persistent_parameters``), ``runtime/zero/partition_parameters.py``
(``_convert_to_deepspeed_param``) and ``runtime/zero/stage3.py`` (``_post_step``). Sizes of the calls:
``partition_parameters.py`` (``all_gather_coalesced``).
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from bench.models.modules import Module, Parameter, calls, parameters
from bench.zero.defaults import SIZES, SWITCHES
from bench.zero.trace import Checkpointing, Event, micro_step


class Call(NamedTuple):
    """A collective; ``num_elements`` of its larger side, padding included. ``carries``: what it gathers."""

    phase: str
    op: str
    num_elements: int
    carries: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Limits:
    """The ``stage3_*`` settings that decide about gathers, in elements; the defaults are DeepSpeed 0.19.8's."""

    prefetch_bucket_size: int = SIZES["stage3_prefetch_bucket_size"]
    max_live_parameters: int = SIZES["stage3_max_live_parameters"]
    max_reuse_distance: int = SIZES["stage3_max_reuse_distance"]
    param_persistence_threshold: int = SIZES["stage3_param_persistence_threshold"]
    model_persistence_threshold: int = SIZES["stage3_model_persistence_threshold"]
    use_all_reduce_for_fetch_params: bool = SWITCHES["stage3_use_all_reduce_for_fetch_params"]
    allgather_sequential: bool = SWITCHES["stage3_allgather_sequential"]


def padded(num_elements: int, world_size: int) -> int:
    """Return ``num_elements`` rounded up to a multiple of ``world_size``: what a sharded parameter takes in all."""
    return -(-num_elements // world_size) * world_size


def gathers(
    model: Module,
    limits: Limits,
    *,
    world_size: int,
    gradient_accumulation_steps: int,
    activation_checkpointing: Checkpointing,
    num_steps: int,
) -> list[Call]:
    """Return the gathers of the last of ``num_steps`` optimizer steps, counted from the building of the engine.

    The steps before it matter: the first micro-step records the trace, and what the second one, the first with
    prefetching, releases is remembered for ever (an ``lru_cache`` on ``__params_to_release``).
    """
    coordinator = _Coordinator(model, limits, world_size)
    events = micro_step(model, activation_checkpointing)
    for _ in range(num_steps):
        coordinator.calls.clear()
        for _ in range(gradient_accumulation_steps):
            coordinator.run(events)
        coordinator.optimizer_step()
    return coordinator.calls


class _Coordinator:
    """One rank's ``PartitionedParameterCoordinator``, without the tensors. Modules are known by their names."""

    def __init__(self, model: Module, limits: Limits, world_size: int) -> None:
        self.limits, self.world_size = limits, world_size
        self.all = parameters(model)
        self.below = {module.name: parameters(module) for module in calls(model)}
        self.regathered = _within(self.all, limits, limits.model_persistence_threshold)
        made_persistent = _within(self.all, limits, limits.model_persistence_threshold // world_size)
        self.persistent = {*self.regathered, *made_persistent}
        self.available: set[Parameter] = set()
        self.in_flight: dict[Parameter, list[Parameter]] = {}  # with those that came in the same call
        self.users: dict[Parameter, set[str]] = {parameter: set() for parameter in self.all}
        self.in_backward: dict[str, Module] = {}
        self.recomputed: dict[str, set[Parameter]] = {}  # frozen ones, by the module in whose backward they were used
        self.num_live = 0
        self.position = 0
        self.trace: list[Module] = []
        self.complete = False
        self.queue: deque[tuple[Parameter, int]] = deque()
        self.next_use: dict[Parameter, int] = {}
        self.released_at: dict[tuple[str, int], set[Parameter]] = {}
        self.phase = ""
        self.calls: list[Call] = []

    def run(self, events: list[Event]) -> None:
        """One micro-step."""
        self._reset()
        for event in events:
            self.phase = event.phase
            if event.kind == "fetch":
                self._fetch(event.module, event.forward)
            else:
                self._release(event.module, event.forward)
        while self.in_backward:  # release_backward_leftovers
            name, module = self.in_backward.popitem()
            for parameter in {*module.parameters, *self.recomputed.pop(name, ())}:
                self.users[parameter].discard(name)
                if parameter not in self.persistent:
                    self._free(parameter)

    def optimizer_step(self) -> None:
        """All parameters are partitioned, the shards updated, the persistent ones gathered again, one by one."""
        for parameter in self.all:
            self._wait(parameter)
            self.users[parameter].clear()
            self._free(parameter)
        missing = [parameter for parameter in self.regathered if parameter not in self.available]
        self.available.update(missing)
        if self.world_size > 1 or len(missing) == 1 or self.limits.allgather_sequential:
            self.calls += [self._call("step", "all_gather_into_tensor", [parameter]) for parameter in missing]

    def _reset(self) -> None:
        for parameter in list(self.in_flight):
            self._wait(parameter)
            self._free(parameter)
        self.complete = bool(self.trace)
        self.queue = deque(
            (parameter, position)
            for position, module in enumerate(self.trace)
            for parameter in sorted(module.parameters, key=lambda p: p.position)
        )
        self.next_use = {}
        self.position = 0
        self.num_live = 0

    def _fetch(self, module: Module, forward: bool) -> None:
        if not self.complete:
            self.trace.append(module)
        if not forward:
            self.in_backward[module.name] = module
        self._gather([p for p in module.parameters if self._away(p)])
        owner = next(reversed(self.in_backward), None) if forward and self.phase == "backward" else None
        for parameter in module.parameters:
            self.users[parameter].add(module.name)
            if owner is not None and not parameter.trainable:
                self.users[parameter].add(owner)
                self.recomputed.setdefault(owner, set()).add(parameter)
            self._wait(parameter)
        if self.complete:
            self._prefetch(module)
        self.position += 1

    def _prefetch(self, module: Module) -> None:
        awaited = {p for p in module.parameters if self.next_use.get(p, -1) < self.position}
        passed: set[Parameter] = set()
        while self.queue and len(passed) < len(awaited):
            parameter, use = self.queue.popleft()
            self.next_use[parameter] = use
            passed.add(parameter)
        assert passed == awaited, "the trace does not repeat itself"
        if not self.limits.prefetch_bucket_size:
            return
        room = min(self.limits.max_live_parameters - self.num_live, self.limits.prefetch_bucket_size)
        wanted: list[Parameter] = []
        num_wanted = 0
        while self.queue and num_wanted < room:
            parameter, use = self.queue.popleft()
            self.next_use[parameter] = max(self.next_use.get(parameter, -1), use)
            if self._away(parameter) and parameter not in wanted:
                wanted.append(parameter)
                num_wanted += parameter.numel
        self._gather(wanted)

    def _release(self, module: Module, forward: bool) -> None:
        released = self._released(module) if self.complete else set(module.parameters)
        concerned = set(module.parameters)
        if not forward:
            self.in_backward.pop(module.name, None)
            recomputed = self.recomputed.pop(module.name, set())
            # In place, as DeepSpeed's: what is remembered of the module has them from now on.
            released |= recomputed - self.persistent
            concerned |= recomputed
        for parameter in concerned:
            self.users[parameter].discard(module.name)
            if parameter in released:
                self._free(parameter)

    def _released(self, module: Module) -> set[Parameter]:
        """What a module lets go: not what persists, what prefetch has passed over, what is used again soon."""
        key = (module.name, self.position)
        if key not in self.released_at:
            found = {
                p for p in module.parameters if p not in self.persistent and self.next_use.get(p, -1) <= self.position
            }
            distance = 0
            for later in self.trace[self.position :]:
                if distance >= self.limits.max_reuse_distance or not found:
                    break
                for parameter in self._counted(later, module.leaf):
                    found.discard(parameter)
                    distance += parameter.numel
            self.released_at[key] = found
        return self.released_at[key]

    def _counted(self, later: Module, releasing_leaf: bool) -> tuple[Parameter, ...] | list[Parameter]:
        """What a later module adds to the distance; whether to look below it, DeepSpeed asks the one that releases."""
        if releasing_leaf:
            return self.below[later.name]
        return () if later.leaf else later.parameters

    def _away(self, parameter: Parameter) -> bool:
        return parameter not in self.available and parameter not in self.in_flight

    def _wait(self, parameter: Parameter) -> None:
        """A gather that is waited for brings all parameters that came with it."""
        for arrived in self.in_flight.get(parameter, ()):
            self.in_flight.pop(arrived, None)
            self.available.add(arrived)

    def _free(self, parameter: Parameter) -> None:
        if parameter in self.available and not self.users[parameter]:
            self.available.discard(parameter)
            self.num_live -= parameter.numel

    def _gather(self, missing: list[Parameter]) -> None:
        if not missing:
            return
        self.num_live += sum(parameter.numel for parameter in missing)
        self.in_flight |= dict.fromkeys(missing, missing)
        if self.world_size == 1:
            return
        if self.limits.allgather_sequential or len(missing) == 1:
            self.calls += [self._call(self.phase, "all_gather_into_tensor", [parameter]) for parameter in missing]
        else:
            op = "all_reduce" if self.limits.use_all_reduce_for_fetch_params else "all_gather_into_tensor"
            self.calls.append(self._call(self.phase, op, missing))

    def _call(self, phase: str, op: str, carried: list[Parameter]) -> Call:
        return Call(phase, op, sum(padded(p.numel, self.world_size) for p in carried), tuple(carried))


def _within(found: list[Parameter], limits: Limits, budget: int) -> list[Parameter]:
    """Return the parameters small enough to persist, in order, as long as their sum stays within ``budget``."""
    chosen: list[Parameter] = []
    total = 0
    for parameter in found:
        if parameter.numel <= limits.param_persistence_threshold and total + parameter.numel <= budget:
            chosen.append(parameter)
            total += parameter.numel
    return chosen
