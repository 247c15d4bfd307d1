"""What one optimizer step of a trainer of transformers issues, from the end of the step before it."""

import contextlib
import dataclasses

from transformers import TrainerCallback

from bench.measure.comm import CollectiveRecorder

SETTLED, LOGGED = 4, 5


class Watch(TrainerCallback):
    """Records step ``SETTLED``, and step ``LOGGED``, at whose beginning a trainer with 4 logging steps logs."""

    def __init__(self):
        self.recorders = {}
        self.active = contextlib.ExitStack()

    def on_step_end(self, args, state, control, **others):
        self.active.close()
        if (step := state.global_step + 1) in (SETTLED, LOGGED):
            self.recorders[step] = self.active.enter_context(CollectiveRecorder())

    def seen(self):
        return {name: plain(self.recorders[step].events) for name, step in (("settled", SETTLED), ("logged", LOGGED))}


def plain(events):
    """Collectives without their phase, which only zerostage's own loop knows."""
    return [dataclasses.astuple(dataclasses.replace(event, phase="")) for event in events]
