"""The DDP baseline against a loop written out by hand. SGD, because Adam hides a scaled gradient."""

import math
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bench.measure.comm import CollectiveRecorder
from bench.worker.ddp import DDPEngine

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

SGD = partial(torch.optim.SGD, lr=0.5)


@pytest.fixture(autouse=True)
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def new_model(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def batches(count, dtype):
    return [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(count)]


def loss_of(model, batch):
    return model(batch).float().pow(2).mean()


@pytest.fixture
def positional(monkeypatch):
    """Models of transformers take keywords; the small ones here take one tensor."""

    def call(self, batch):
        self.ddp.require_backward_grad_sync = (self.micro_steps + 1) % self.gas == 0
        return self.ddp(batch)

    monkeypatch.setattr(DDPEngine, "__call__", call)


def train(engine, data):
    for batch in data:
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()


@pytest.mark.parametrize("gas", [1, 3])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_fp32_equals_a_loop_by_hand(positional, gas, clip):
    model, by_hand = new_model(torch.float32), new_model(torch.float32)
    engine = DDPEngine(model, SGD, gradient_accumulation_steps=gas, gradient_clipping=clip)
    train(engine, batches(2 * gas, torch.float32))

    optimizer = SGD(by_hand.parameters())
    for step in range(2):
        micro_batches = batches(2 * gas, torch.float32)[step * gas : (step + 1) * gas]
        (sum(loss_of(by_hand, batch) for batch in micro_batches) / gas).backward()
        if clip:
            nn.utils.clip_grad_norm_(by_hand.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_16_bit_updates_an_fp32_master_copy(positional):
    """Steps far below the resolution of bf16 still add up."""
    model = new_model(torch.bfloat16)
    engine = DDPEngine(model, partial(torch.optim.SGD, lr=1e-4), gradient_accumulation_steps=1, gradient_clipping=0.0)
    before = [master.clone() for master in engine.masters]
    train(engine, batches(20, torch.bfloat16))
    assert all(master.dtype == torch.float32 for master in engine.masters)
    assert all((master != old).any() for master, old in zip(engine.masters, before, strict=True))
    for param, master in zip(engine.params, engine.masters, strict=True):
        assert torch.equal(param, master.bfloat16())


def test_fp16_norm_of_scaled_gradients_does_not_overflow():
    """1,000 gradients of 0.01, scaled by 65,536, have a norm far above what fp16 holds; the step is still taken."""
    model = nn.Linear(1000, 1, bias=False).half()
    engine = DDPEngine(model, SGD, gradient_accumulation_steps=1, gradient_clipping=1.0)
    assert engine.scale == 2.0**16
    model.weight.grad = torch.full((1, 1000), 0.01 * engine.scale, dtype=torch.float16)
    before = engine.masters[0].clone()
    engine.step()
    assert engine.skipped_steps == 0
    update = before - engine.masters[0]
    assert float(update.mean()) == pytest.approx(0.5 * 0.01, rel=1e-3)  # norm 0.316: nothing is clipped


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 2.0**15), (torch.bfloat16, 1.0)])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(dtype, scale):
    model = nn.Linear(4, 1, bias=False).to(dtype)
    engine = DDPEngine(model, SGD, gradient_accumulation_steps=1, gradient_clipping=1.0)
    before = model.weight.detach().clone()
    model.weight.grad = torch.full((1, 4), math.inf, dtype=dtype)
    engine.step()
    assert engine.skipped_steps == 1
    assert engine.scale == scale
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_constant_buffers_are_not_broadcast_in_forward(positional):
    model = new_model(torch.float32)
    model.register_buffer("constant", torch.ones(4))
    engine = DDPEngine(model, SGD, gradient_accumulation_steps=1, gradient_clipping=1.0)
    with CollectiveRecorder() as recorder:
        engine(batches(1, torch.float32)[0])
    assert recorder.events == []
