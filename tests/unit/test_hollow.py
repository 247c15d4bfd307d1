"""Tensors without memory: whatever does not touch their content works, whatever does ends the process."""

import ast
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bench.emulate.emulator import Emulator
from bench.emulate.hollow import AddressSpace, is_hollow
from bench.measure.memory import StorageMeter

TIB = 2**40


def hollow(*shape, dtype=torch.float32):
    made = torch.empty(shape, dtype=dtype, device="meta")
    return AddressSpace().tensor(shape, made.stride(), dtype, made.nbytes)


def python(code):
    """Run ``code`` in a process of its own; return it when it has ended, its text captured."""
    lines = "import resource, torch\nfrom bench.emulate.emulator import Emulator\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", lines]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100)


def test_a_terabyte_fits_into_no_memory():
    ended = python("""
        with Emulator():
            torch.randn(8)
            used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (used + 2**26,) * 2)
            big = torch.zeros(2**38)
            twice = (big * 2).view(2**19, 2**19).t().contiguous()
            assert big.nbytes == twice.nbytes == 2**40
            try:
                bytearray(2**27)
            except MemoryError:
                print("the limit holds")
    """)
    assert (ended.returncode, ended.stdout) == (0, "the limit holds\n"), ended.stderr


READS = {
    "tolist": "torch.zeros(100).tolist()",
    "numpy": "torch.zeros(100).numpy().sum()",
    "print": "str(torch.zeros(100))",
    "after": "found = torch.zeros(100)\ntorch._C._pop_torch_dispatch_stack(None)\nfound.sum()",
    "write": "torch.zeros(100).numpy()[0] = 1",
    "last byte": "torch.zeros(2**38).numpy()[-1].item()",
}


@pytest.fixture(scope="module")
def fates():
    """Let every read happen in a fork of one process; return what ended it and what it printed, by read."""
    ended = python(f"""
        import os
        for name, code in {READS!r}.items():
            read, write = os.pipe()
            if not (child := os.fork()):
                os.dup2(write, 1)
                Emulator().__enter__()
                exec(code)
                print("a number", flush=True)
                os._exit(0)
            os.close(write)
            _, status = os.waitpid(child, 0)
            print([name, os.waitstatus_to_exitcode(status), os.read(read, 100)])
    """)
    assert ended.returncode == 0, ended.stderr
    return {name: fate for name, *fate in map(ast.literal_eval, ended.stdout.splitlines())}


@pytest.mark.parametrize("read", READS)
def test_who_touches_the_content_gets_no_number(fates, read):
    status, printed = fates[read]
    assert status in (-signal.SIGSEGV, -signal.SIGBUS)  # x86 raises the second for some registers
    assert printed == b""


@given(st.lists(st.integers(0, 2**44), min_size=2, max_size=30))
def test_storages_do_not_touch(sizes):
    space, end = AddressSpace(), 0
    for size in sizes:
        storage = space.tensor((size,), (1,), torch.uint8, size).untyped_storage()
        assert storage.nbytes() == size
        assert storage.data_ptr() > end  # not even end to end
        end = storage.data_ptr() + size


def test_addresses_run_out_with_a_word():
    space = AddressSpace()
    space.tensor((2**54,), (1,), torch.uint8, 2**54)
    with pytest.raises(MemoryError, match="address space"):
        space.tensor((2**54,), (1,), torch.uint8, 2**54)


def test_a_hollow_tensor_is_a_plain_one():
    tensor = hollow(6, 40, dtype=torch.bfloat16)
    assert type(tensor) is torch.Tensor
    assert is_hollow(tensor)
    assert tensor.device == torch.device("cpu")
    assert (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_contiguous()) == (
        torch.bfloat16,
        torch.Size([6, 40]),
        (40, 1),
        True,
    )
    assert not is_hollow(torch.zeros(6, 40))
    assert not is_hollow(torch.zeros(0))


def test_views_share_the_storage():
    tensor = hollow(6, 40)
    for view in (tensor.t(), tensor[2:], tensor.view(-1).narrow(0, 7, 9), tensor.unbind()[3], tensor.detach()):
        assert is_hollow(view)
        assert view.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    assert tensor[2:].data_ptr() == tensor.data_ptr() + 2 * 40 * 4


def test_data_can_be_given_away():
    param, flat = nn.Parameter(hollow(40)), hollow(100)
    param.data = flat.narrow(0, 20, 40)
    assert param.data_ptr() == flat.data_ptr() + 80
    param.data = torch.empty(0)
    assert not is_hollow(param)


def test_autograd_and_its_hooks_run():
    seen = []
    with Emulator():
        block = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
        block[0].weight.register_hook(lambda grad: seen.append(grad.shape))
        block[2].weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad.shape))
        block(torch.randn(4, 16)).sum().backward()
        assert all(param.grad.shape == param.shape for param in block.parameters())
    assert seen == [(8, 32), (32, 16)]


def test_memory_is_free_when_the_tensor_is():
    emulator, meter = Emulator(), StorageMeter()
    with emulator, emulator.observed_by(meter):
        big = torch.zeros(2**38)
        view = big[1:]
        assert meter.allocated_bytes() == TIB
        del big
        assert meter.allocated_bytes() == TIB
        copy = view.clone()
        assert meter.allocated_bytes() == 2 * TIB - 4
        del view, copy
        assert meter.allocated_bytes() == 0
        assert meter.peak_allocated_bytes() == 2 * TIB - 4
