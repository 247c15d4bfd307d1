"""An operator that does not run returns what the real one returns on CPU: shapes, strides, dtypes and storages."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.emulate.emulator import Emulator
from bench.measure.memory import StorageMeter


def rand(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def transposed():
    return rand(6, 40).t()


def backward(loss, *leaves):
    loss.backward()
    return [leaf.grad for leaf in leaves]


def attention(dtype, **settings):
    q, k, v = (rand(2, 4, 8, 16, dtype=dtype, grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, **settings)
    return out, *backward(out.sum(), q, k, v)


def layer(module, *inputs):
    out = module(*inputs)
    return out, *backward(out.sum(), *module.parameters())


def nll_loss():
    logits = rand(24, 33, grad=True)
    return backward(F.cross_entropy(logits, torch.randint(0, 33, (24,))), logits)


def written(tensor, change):
    change(tensor)
    return tensor


def adamw(**settings):
    params = [rand(5, 7, grad=True), rand(40, grad=True)]
    optimizer = torch.optim.AdamW(params, **settings)
    for _ in range(2):
        sum(param.sum() for param in params).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = [value for each in optimizer.state.values() for value in each.values()]
    return *params, *state


def grouped(dtype):
    tokens, experts = rand(24, 16, dtype=dtype, grad=True), rand(3, 16, 32, dtype=dtype, grad=True)
    out = torch._grouped_mm(tokens, experts, offs=torch.tensor([8, 16, 24], dtype=torch.int32))
    return out, *backward((out * out).sum(), tokens, experts)


def set_data():
    param = nn.Parameter(rand(40))
    flat = rand(100)
    param.data = flat.narrow(0, 20, 40)
    flat.add_(1)
    return param, flat


def checkpointed():
    block, x = nn.Sequential(nn.Linear(16, 32), nn.GELU()), rand(4, 16, grad=True)
    out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    return out, *backward(out.sum(), x, *block.parameters())


BF16 = torch.bfloat16
CALLS = {
    "add": lambda: rand(6, 40) + 1,
    "add of two dtypes": lambda: rand(6, 40) + rand(6, 40, dtype=BF16),
    "add of an integer and a float": lambda: torch.arange(40) + 0.5,
    "broadcast": lambda: rand(6, 1, 40) * rand(1, 5, 1),
    "non-contiguous": lambda: transposed() * 2,
    "non-contiguous and contiguous": lambda: transposed() + rand(40, 6),
    "strided view": lambda: rand(10, 40)[::2, 1::3].exp(),
    "expanded": lambda: rand(40, 1).expand(40, 6).neg(),
    "compare": lambda: rand(6, 40) > 0,
    "where": lambda: torch.where(rand(6, 40) > 0, rand(6, 40), 0.0),
    "matmul": lambda: rand(6, 40) @ rand(40, 7),
    "matmul of transposed": lambda: transposed() @ rand(6, 7),
    "batched matmul": lambda: rand(3, 6, 40, dtype=BF16) @ rand(3, 40, 7, dtype=BF16),
    "einsum": lambda: torch.einsum("bij,bkj->bik", rand(3, 6, 8), rand(3, 7, 8)),
    "sum": lambda: rand(6, 40).sum(),
    "mean of a dimension": lambda: rand(60, 40).mean(1, keepdim=True),
    "norm": lambda: rand(6, 40).norm(2),
    "max of a dimension": lambda: rand(60, 40).max(1),
    "sort": lambda: rand(60, 40).sort(),
    "topk": lambda: rand(60, 40).topk(2),
    "cat": lambda: torch.cat([rand(6, 40), rand(3, 40)]),
    "cat of two dtypes": lambda: torch.cat([rand(40), rand(40, dtype=BF16)]),
    "stack": lambda: torch.stack([rand(6, 40), rand(6, 40)], 1),
    "flatten": lambda: torch._utils._flatten_dense_tensors([rand(6, 40), rand(30)]),
    "split": lambda: rand(6, 40).split([10, 30], 1),
    "index_select": lambda: rand(60, 40).index_select(0, torch.tensor([1, 2])),
    "index by positions": lambda: rand(60, 40)[torch.tensor([1, 2, 5])],
    "index_put_": lambda: written(rand(60, 40), lambda t: t.index_put_((torch.tensor([1]),), rand(40))),
    "index_add_": lambda: written(rand(60, 40), lambda t: t.index_add_(0, torch.tensor([1]), rand(1, 40))),
    "gather": lambda: rand(60, 40).gather(1, torch.randint(0, 40, (60, 3))),
    "scatter": lambda: rand(60, 40).scatter(1, torch.randint(0, 40, (60, 3)), 1.0),
    "one_hot": lambda: F.one_hot(torch.randint(0, 8, (30,)), num_classes=8),
    "cumsum": lambda: rand(6, 40).cumsum(1),
    "contiguous": lambda: transposed().contiguous(),
    "reshape that copies": lambda: transposed().reshape(-1),
    "reshape that views": lambda: rand(6, 40).reshape(-1),
    "clone": lambda: transposed().clone(),
    "to bf16": lambda: transposed().to(BF16),
    "to the same": lambda: transposed().to(torch.float32),
    "bf16 to float": lambda: rand(6, 40, dtype=BF16).float(),
    "empty_like": lambda: torch.empty_like(transposed()),
    "zeros_like of another dtype": lambda: torch.zeros_like(transposed(), dtype=torch.float64),
    "new_empty": lambda: rand(40, dtype=BF16).new_empty(3, 30),
    "full": lambda: torch.full((6, 40), 1.5, dtype=BF16),
    "tril": lambda: torch.ones(20, 20, dtype=torch.bool).tril(),
    "out": lambda: written(rand(6, 40), lambda t: torch.add(rand(6, 40), 1, out=t)),
    "in place": lambda: written(rand(6, 40), lambda t: t.mul_(2).add_(rand(6, 40)).div_(3)),
    "in place on a view": lambda: written(rand(60, 40), lambda t: t.narrow(0, 10, 20).copy_(rand(20, 40))),
    "copy_ of another dtype": lambda: written(rand(6, 40, dtype=BF16), lambda t: t.copy_(rand(6, 40))),
    "zero_": lambda: written(rand(6, 40), torch.Tensor.zero_),
    ".data": set_data,
    "_foreach_norm": lambda: torch._foreach_norm([rand(6, 40), rand(30)]),
    "_foreach_mul": lambda: torch._foreach_mul([rand(6, 40), transposed()], 2.0),
    "_foreach_add_": lambda: written([rand(6, 40), rand(30)], lambda ts: torch._foreach_add_(ts, [ts[0], ts[1]])),
    "AdamW one by one": lambda: adamw(foreach=False),
    "AdamW foreach": lambda: adamw(foreach=True),
    "AdamW fused": lambda: adamw(fused=True),
    "attention": lambda: attention(torch.float32),
    "attention, causal, bf16": lambda: attention(BF16, is_causal=True),
    "attention, masked": lambda: attention(torch.float32, attn_mask=torch.ones(8, 8, dtype=torch.bool).tril()),
    "embedding": lambda: layer(nn.Embedding(50, 16), torch.randint(0, 50, (4, 9))),
    "linear": lambda: layer(nn.Linear(16, 32), rand(4, 9, 16)),
    "linear, bf16": lambda: layer(nn.Linear(16, 32, dtype=BF16), rand(4, 9, 16, dtype=BF16)),
    "layer norm": lambda: layer(nn.LayerNorm(32), rand(4, 9, 32, grad=True)),
    "rms norm": lambda: layer(nn.RMSNorm(32), rand(4, 9, 32, grad=True)),
    "gelu": lambda: layer(nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate="tanh")), rand(4, 9, 16)),
    "silu": lambda: layer(nn.Sequential(nn.Linear(16, 32), nn.SiLU()), rand(4, 9, 16)),
    "softmax": lambda: layer(nn.Sequential(nn.Linear(16, 32), nn.Softmax(-1)), rand(4, 9, 16)),
    "dropout": lambda: layer(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1)), rand(4, 9, 16)),
    "cross entropy": nll_loss,
    "grouped matmul": lambda: grouped(torch.float32),
    "grouped matmul, bf16": lambda: grouped(BF16),
    "checkpoint": checkpointed,
    "positions": lambda: torch.arange(40).unsqueeze(0).expand(3, 40) + 1,
}


def described(results):
    """Return all that can be seen of tensors without their content, and which of them share a storage."""
    found, storages = [], []
    for result in torch.utils._pytree.tree_leaves(results):
        storage = result.untyped_storage()
        storages.append(storage._cdata)
        found.append(
            (
                tuple(result.shape),
                result.stride(),
                result.storage_offset(),
                result.dtype,
                storage.nbytes(),
                result.requires_grad,
                storages.index(storage._cdata),
            )
        )
    return found


def emulated(call):
    """Return what ``call`` returns, described, and the meter that saw it.

    An error is raised anew: pytest would print the tensors in its traceback, which no process survives.
    """
    emulator, meter, error = Emulator(), StorageMeter(), None
    with emulator, emulator.observed_by(meter):
        meter.begin_log()
        try:
            found = described(call())
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    assert error is None, error
    return found, meter


@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_storages_are_those_of_the_real_operator(name):
    with StorageMeter() as real:
        real.begin_log()
        expected = described(CALLS[name]())
    found, meter = emulated(CALLS[name])
    assert found == expected
    assert meter._log._changes == real._log._changes
    assert meter.peak_allocated_bytes() == real.peak_allocated_bytes() > 0


DEFAULT_DTYPE = {
    "made": lambda: torch.ones(40),
    "random": lambda: torch.randn(40),
    "divided": lambda: torch.ones(40, dtype=torch.int64) / 3,
    "range": lambda: torch.arange(0.0, 40.0),
}


@pytest.mark.parametrize("name", DEFAULT_DTYPE)
def test_what_is_learned_with_one_default_dtype_is_not_used_with_another(name):
    with Emulator():
        torch.set_default_dtype(BF16)
        try:
            first = DEFAULT_DTYPE[name]()
        finally:
            torch.set_default_dtype(torch.float32)
        assert (first.dtype, DEFAULT_DTYPE[name]().dtype) == (BF16, torch.float32)
