"""One clock for every row: whole optimizer steps, between two device synchronisations."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class StepTimes:
    """One entry per step. ``thread_cpu_s`` is CPU time of the thread that drives the step.

    ``witness_s`` is the sum of the same steps by a clock of its own that waits for the device by itself: what it has
    more, the clock around the steps has missed. ``tokens``: what this rank was fed, per step.
    """

    wall_s: list[float] = field(default_factory=list)
    thread_cpu_s: list[float] = field(default_factory=list)
    witness_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    skipped_steps: int = 0


def synchronize(device: torch.device) -> None:
    """Wait until all work queued on ``device`` is done; nothing is queued on CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def timed_step(times: StepTimes, device: torch.device) -> Iterator[None]:
    """Append the duration of the ``with`` body to ``times``."""
    synchronize(device)
    cpu, wall = time.thread_time(), time.perf_counter()
    yield
    synchronize(device)
    times.wall_s.append(time.perf_counter() - wall)
    times.thread_cpu_s.append(time.thread_time() - cpu)
