"""The two passes over one engine. The counting pass times nothing; the timed pass has no instrument in it."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from bench.cell import COUNTED_STEPS, SETTLING_STEPS, Cell
from bench.measure.clock import StepTimes, synchronize, timed_step
from bench.measure.comm import Collective, CollectiveRecorder
from bench.measure.gradients import Applied, AppliedGradients
from bench.worker.composition import Composition
from bench.worker.data import micro_batches
from bench.worker.engine import (
    gradient_signatures,
    inner_optimizer,
    replicated_grad_norm,
    reported_grad_norm,
    zero_config,
)
from bench.worker.holdings import shards
from bench.worker.rank import Rank


def _no_phase(phase: str) -> None:
    pass


def _each(listeners: list[Callable[[str], None]], phase: str) -> None:
    for listener in listeners:
        listener(phase)


def train_step(engine: Any, batches: list[torch.Tensor], enter_phase: Callable[[str], None] = _no_phase) -> float:
    """Take one optimizer step over all micro-batches; return this rank's mean loss."""
    losses = []
    for batch in batches:
        enter_phase("forward")
        loss = engine(input_ids=batch, labels=batch).loss
        enter_phase("backward")
        engine.backward(loss)
        enter_phase("step")
        engine.step()
        losses.append(loss.detach())
    # Part of the step: without it a device would still be running when the next one begins.
    return sum(float(loss) for loss in losses) / len(losses)


@dataclass
class Counted:
    """What the counting pass of one rank saw. Bytes; traffic is that of one optimizer step."""

    steady_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int | None = None
    collectives: list[Collective] = field(default_factory=list)
    steady: bool = True
    # Of the settling steps only: looking at gradients takes memory, which the counted steps measure.
    grad_norms: list[float | None] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    skipped_steps: int = 0
    shards: dict[str, int | None] = field(default_factory=dict)
    gradients: list[tuple[float, float]] | None = None


class Loop:
    """Steps through the data in order, so that both passes continue one training run."""

    def __init__(self, cell: Cell, engine: Any, vocab_size: int, rank: Rank) -> None:
        self.cell, self.engine, self.vocab_size, self.rank = cell, engine, vocab_size, rank
        self.losses: list[float] = []

    def _batches(self) -> list[torch.Tensor]:
        batches = micro_batches(self.cell, self.vocab_size, len(self.losses), dist.get_rank())
        return [batch.to(self.rank.device) for batch in batches]

    def _look(self, counted: Counted, norms: list[float], backwards: list[str], phase: str) -> None:
        """At the end of the last backward of a step, note what the engine holds and what gradients it has."""
        if phase != "step":
            return
        backwards.append(phase)
        if len(backwards) < self.cell.gradient_accumulation_steps:
            return
        counted.shards = shards(self.engine)
        if self.cell.emulation is not None:  # there are no values to look at
            return
        # Of the first step only: from the second on, rounding has made the weights differ.
        if not self.losses and self.cell.dtype != "fp16":
            counted.gradients = gradient_signatures(self.engine)
        # In fp32 at stage 0 nothing wraps the optimizer, and nothing reports a norm.
        if self.engine.optimizer is inner_optimizer(self.engine) and zero_config(self.cell) is not None:
            norms.append(replicated_grad_norm(self.engine))

    def counting_pass(self, composition: Composition | None = None) -> Counted:
        """Settle, then count two steps, which ``composition`` records. The rank's meter is active."""
        counted, meter = Counted(), self.rank.meter
        with AppliedGradients(inner_optimizer(self.engine)) as gradients:
            for _ in range(SETTLING_STEPS):
                norms: list[float] = []
                look = partial(self._look, counted, norms, [])
                self.losses.append(train_step(self.engine, self._batches(), look))
                norm = reported_grad_norm(self.engine)
                counted.grad_norms.append(norms[-1] if norm is None and norms else norm)
                counted.applied.append(gradients.take())
        nodes = self.rank.nodes()
        previous: list[Collective] | None = None
        for _ in range(COUNTED_STEPS):
            batches = self._batches()
            meter.reset_peak()
            recorder = CollectiveRecorder(nodes)
            with (
                self.rank.counting(recorder),
                composition.recording() if composition else contextlib.nullcontext(),
            ):
                phases: list[Callable[[str], None]] = [recorder.enter_phase]
                phases += [composition.enter_phase] if composition else []
                self.losses.append(train_step(self.engine, batches, partial(_each, phases)))
            counted.peak_allocated_bytes = max(counted.peak_allocated_bytes, meter.peak_allocated_bytes())
            counted.peak_reserved_bytes = meter.peak_reserved_bytes()
            del batches
            counted.steady_bytes = meter.allocated_bytes()
            if composition:
                composition.settled()
            counted.collectives = recorder.events
            counted.steady = previous is None or previous == recorder.events
            previous = recorder.events
        counted.skipped_steps = int(self.engine.skipped_steps)
        return counted

    def timed_pass(self) -> StepTimes:
        """Warm up without instruments, then time ``steps`` whole optimizer steps."""
        for _ in range(self.cell.warmup_steps):
            self.losses.append(train_step(self.engine, self._batches()))
        times = StepTimes()
        skipped_before = int(self.engine.skipped_steps)
        for _ in range(self.cell.steps):
            batches = self._batches()
            dist.barrier()  # outside the clock: all ranks start together
            began = time.monotonic()
            with timed_step(times, self.rank.device):
                loss = train_step(self.engine, batches)
            synchronize(self.rank.device)  # finds nothing left to wait for, if the clock has waited
            times.witness_s += time.monotonic() - began
            times.tokens.append(sum(batch.numel() for batch in batches))
            self.losses.append(loss)
        times.skipped_steps = int(self.engine.skipped_steps) - skipped_before
        return times
