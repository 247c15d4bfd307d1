"""Categories on a plain PyTorch loop, where every byte can be told by hand; DeepSpeed's are in tests/integration."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.measure.memory import StorageMeter
from bench.measure.modules import ModuleTracker
from bench.worker.composition import Composition

ROWS, WIDTH, VOCAB = 8, 16, 32


class Model(nn.Module):
    """A body that saves one activation, a head, and a loss outside both, as transformers' models have it."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.recompute = recompute

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.body, rows, use_reentrant=False) if self.recompute else self.body(rows)
        return F.cross_entropy(self.lm_head(hidden), labels)


def recorded_step(recompute: bool = False, leak: list[torch.Tensor] | None = None) -> Composition:
    """Record one step of plain AdamW, the states being there already."""
    with StorageMeter() as meter:
        model = Model(recompute)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        composition = Composition(SimpleNamespace(module=model, optimizer=optimizer), meter)
        rows, labels = torch.randn(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)
        model(rows, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if leak is not None:
            leak.append(torch.zeros(1000))
        with composition.recording():
            composition.enter_phase("forward")
            loss = model(rows, labels)
            composition.enter_phase("backward")
            loss.backward()
            composition.enter_phase("step")
            optimizer.step()
            optimizer.zero_grad()
    return composition


def bytes_at(composition: Composition, name: str) -> dict[str, int]:
    point = next(point for point in composition.points() if point["point"] == name)
    assert sum(point["bytes"].values()) == point["total_bytes"]
    return point["bytes"]


WEIGHTS = 4 * (WIDTH * WIDTH + WIDTH * VOCAB)
BATCH = 4 * ROWS * WIDTH + 8 * ROWS


def test_categories_of_a_plain_step_by_hand():
    step = recorded_step()
    assert bytes_at(step, "init") == {"parameters": WEIGHTS}
    states = {"parameters": WEIGHTS, "optimizer_states": 2 * WEIGHTS + 2 * 4, "other": BATCH}
    assert bytes_at(step, "forward") == states | {
        "activations": 4 * ROWS * WIDTH,  # the tanh's output; the body's input is the batch
        "logits_loss": 4 * ROWS * VOCAB + 2 * 4,  # log-probabilities, the loss and its divisor
    }
    assert bytes_at(step, "backward") == states | {"gradients": WEIGHTS, "logits_loss": 4}
    in_step = bytes_at(step, "step")
    assert in_step.pop("step_temporaries") >= 2 * 4 * WIDTH * VOCAB  # for-loop AdamW: two of the largest tensor
    assert in_step == states | {"gradients": WEIGHTS, "logits_loss": 4}


def test_recomputed_activations_are_activations_and_the_peak_is_placed():
    step = recorded_step(recompute=True)
    assert "activations" in bytes_at(step, "forward")  # the hidden state, the head's input
    peak = next(point for point in step.points() if point["point"] == "peak")
    assert peak["where"].split(":")[0] in ("forward", "backward", "recomputation", "step")


def test_a_leak_from_before_the_step_is_other_at_every_point_of_it():
    control, leaking = recorded_step(), recorded_step(leak=(kept := []))
    for name in ("forward", "backward", "step", "peak"):
        assert bytes_at(leaking, name)["other"] - bytes_at(control, name)["other"] == 4000
    assert len(kept) == 1


def test_no_hook_is_left():
    step = recorded_step()
    module = torch.nn.modules.module
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    assert all(not parameter._backward_hooks for parameter in step._engine.module.parameters())


@pytest.mark.parametrize("recompute", [False, True])
def test_modules_are_named_in_forward_and_in_backward(recompute):
    model = Model(recompute)
    tracker = ModuleTracker(model)
    seen: dict[str, list[str]] = {"forward": [], "backward": []}
    rows, labels = torch.randn(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)
    phase = "forward"
    with StorageMeter() as meter, tracker.active():
        meter.place = lambda: (seen[phase].append(tracker.current()), ("", ""))[1]
        loss = model(rows, labels)
        phase = "backward"
        loss.backward()
    assert list(dict.fromkeys(seen["forward"])) == ["body.0", "body.1", "lm_head", "loss"]
    named = list(dict.fromkeys(name for name in seen["backward"] if name))
    assert named[:2] == ["loss", "lm_head"]
    assert set(named[2:]) == {"body.0", "body.1"}
    assert not tracker.in_forward
