"""What telling host from device assumes of torch 2.13 and DeepSpeed 0.19.8, one test each."""

import inspect
import re

import pytest
import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.runtime import engine, utils
from deepspeed.runtime.zero import partition_parameters, stage3, stage_1_and_2

from bench.emulate.accelerator import CudaLikeAccelerator
from bench.emulate.allocator import Allocator
from bench.emulate.emulator import Emulator
from bench.emulate.hollow import is_hollow
from bench.emulate.places import DEVICE, HOST, DeviceName, host_and_device, is_host, pinned_like
from bench.measure.memory import StorageMeter
from bench.measure.places import host_kind, note_host, on_host

BF16 = torch.bfloat16
SIZE = 40  # elements: more than what is always real


@pytest.fixture
def accelerator():
    return CudaLikeAccelerator(Allocator(2**36))


@pytest.fixture
def apart():
    """Be where an emulated rank on the cuda-like path is; the meter sees what passes."""
    emulator, meter = Emulator(apart=True), StorageMeter()
    with host_and_device(), emulator, emulator.observed_by(meter):
        yield meter


def on_the_host(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=HOST)


def on_the_device(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def storage(tensor):
    return tensor.untyped_storage()._cdata


# torch


def test_torch_takes_host_and_device_for_one_processor():
    """`Tensor.to` copies to the device's name all the same; it forgets that name."""
    tensor = torch.arange(3.0)
    moved = tensor.to(DEVICE)
    assert storage(moved) != storage(tensor)
    assert (str(DEVICE), str(moved.device), str(tensor.device)) == ("cpu:0", "cpu", "cpu")
    assert (moved + tensor).tolist() == [0, 2, 4]
    assert storage(tensor.to(HOST)) == storage(tensor)


def test_a_tensors_device_is_an_attribute_of_a_base_class_that_can_be_covered():
    assert "device" not in vars(torch.Tensor)
    assert {"to", "cpu"}.isdisjoint(vars(torch.Tensor))
    assert inspect.isgetsetdescriptor(torch._C.TensorBase.device)
    assert torch._C.TensorBase.device.__get__(torch.zeros(1)) == HOST


def now():
    return torch.Tensor.device, torch.Tensor.to, torch.Tensor.cpu, *map(vars(torch.Tensor).get, ("device", "to", "cpu"))


def test_what_is_covered_is_there_again():
    def fail():
        assert not set(now()) & set(before[:3])
        assert torch.zeros(1).device == DEVICE
        raise ZeroDivisionError

    before = now()
    with pytest.raises(ZeroDivisionError), host_and_device():
        fail()
    assert now() == before
    assert torch.zeros(1).device == HOST


def test_a_storage_keeps_the_note_that_it_is_host_memory():
    tensor = torch.zeros(SIZE)
    assert (host_kind(tensor.untyped_storage()), on_host(tensor)) == (None, False)
    note_host(tensor[3:], pinned=True)
    assert (host_kind(tensor.untyped_storage()), on_host(tensor.view(4, 10))) == ("pinned", True)
    note_host(tensor)
    assert host_kind(tensor.untyped_storage()) == "pageable"
    assert not on_host(torch.zeros(3).to_sparse())


# Names of devices


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("cpu", True),
        (torch.device("cpu"), True),
        (DeviceName("cpu"), False),
        ("cpu:0", False),
        (DEVICE, False),
        (0, False),
        ("meta", None),
        (BF16, None),
        (None, None),
        (True, None),
    ],
)
def test_a_name_is_that_of_the_host_or_of_the_device(name, host):
    assert is_host(name) is host


def test_the_name_of_the_kind_is_a_string_like_any_other():
    name = DeviceName("cpu")
    assert (name == "cpu", torch.device(name), f"{name}:0") == (True, HOST, "cpu:0")


# Tensors


def devices(*tensors):
    """Return where tensors are. No assertion may name a hollow tensor: pytest would print it, and end the process."""
    return ["host" if tensor.device == HOST else "device" if tensor.device == DEVICE else None for tensor in tensors]


def test_tensors_are_made_where_they_are_asked_for(apart):
    host, device = on_the_host(SIZE), on_the_device(SIZE)
    assert devices(host, host + 1, host[3:], host.view(4, 10), torch.empty_like(host)) == ["host"] * 5
    assert devices(device, device + 1, device[3:], device.view(4, 10), torch.empty_like(device)) == ["device"] * 5
    assert devices(torch.zeros(SIZE), torch.empty_like(device, device=HOST)) == ["host"] * 2
    assert devices(torch.empty_like(host, device=DEVICE), host + device) == ["device"] * 2


def test_an_operator_that_is_given_the_kind_of_device_is_given_the_hosts_name(apart):
    """torch makes a device of the name first. DeepSpeed asks for one number so, with the name nowhere else."""
    assert devices(torch.zeros(SIZE, device=DeviceName("cpu"))) == ["host"]
    called = [
        line.strip()
        for module in (stage_1_and_2, stage3, partition_parameters, utils, engine)
        for line in inspect.getsource(module).splitlines()
        if re.search(r"torch\.(?!amp).*device=get_accelerator\(\)\.device_name\(\)", line)
    ]
    assert called == ["backup_gpu_tensor = torch.randn(1, device=get_accelerator().device_name()).to(self.dtype)"]


CALLS = {
    "device": lambda tensor, there: tensor.to(there.device),
    "device by keyword": lambda tensor, there: tensor.to(device=there.device),
    "device as text": lambda tensor, there: tensor.to(str(there.device)),
    "device and dtype": lambda tensor, there: tensor.to(there.device, there.dtype),
    "tensor": lambda tensor, there: tensor.to(there),
    "tensor by keyword": lambda tensor, there: tensor.to(other=there),
    "tensor, without blocking": lambda tensor, there: tensor.to(there, True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", [3, SIZE])
def test_to_moves_in_all_its_forms(apart, call, size):
    for tensor, there in ((on_the_host(size), on_the_device(size)), (on_the_device(size), on_the_host(size))):
        moved, stayed = CALLS[call](tensor, there), CALLS[call](tensor, tensor)
        found = devices(moved, stayed), storage(moved) == storage(tensor), storage(stayed) == storage(tensor)
        assert found == (devices(there, tensor), False, True)


def test_to_a_dtype_stays_where_it_is(apart):
    for tensor in (on_the_host(SIZE), on_the_device(SIZE)):
        other, same = tensor.to(BF16), tensor.to(torch.float32)
        copies = tensor.to(tensor.device, copy=True), tensor.to(BF16, copy=True), tensor.to(tensor, copy=True)
        assert devices(other, same, *copies) == devices(tensor) * 5
        dtypes = [each.dtype for each in (other, copies[1], tensor.to(on_the_host(1, dtype=BF16)))]
        assert dtypes == [BF16] * 3
        shared = [storage(each) == storage(tensor) for each in (other, same, *copies)]
        assert shared == [False, True, False, False, False]


def test_cpu_moves_to_the_host(apart):
    device, host = on_the_device(SIZE), on_the_host(SIZE)
    moved, stayed = device.cpu(), host.cpu()
    found = devices(moved, stayed), storage(stayed) == storage(host), is_hollow(moved)
    assert found == (["host", "host"], True, True)


def test_what_is_moved_is_seen_as_a_copy(apart):
    seen = []
    apart.watch = lambda op, args: seen.append((op, on_host(args[0]), on_host(args[1])))
    on_the_device(SIZE).to(HOST)
    on_the_host(SIZE).to(DEVICE, non_blocking=True)
    assert seen == [("copy_", True, False), ("copy_", False, True)]


def test_host_memory_is_counted_apart(apart):
    host = on_the_host(SIZE)
    assert (apart.allocated_bytes(), sum(apart.live().values())) == (0, 160)
    device = host.to(DEVICE)
    assert (apart.allocated_bytes(), sum(apart.live().values())) == (160, 320)
    pinned = pinned_like(device)
    assert apart.allocated_bytes() == 160
    assert [apart.birth(tensor).host for tensor in (host, device, pinned)] == ["pageable", None, "pinned"]
    del host, device, pinned
    assert (apart.allocated_bytes(), apart.peak_allocated_bytes(), apart.live()) == (0, 160, {})


# DeepSpeed


def test_the_accelerator_tells_host_from_device(apart, accelerator):
    host, device = on_the_host(SIZE), on_the_device(SIZE)
    pinned = accelerator.pin_memory(host)
    everywhere = (host, device, pinned)
    found = [(accelerator.on_accelerator(tensor), accelerator.is_pinned(tensor)) for tensor in everywhere]
    assert found == [(False, False), (True, False), (False, True)]
    found = devices(pinned), tuple(pinned.shape), storage(pinned) == storage(host), accelerator.unpin_memory(pinned)
    assert found == (["host"], (SIZE,), False, False)
    assert is_host(accelerator.current_device_name()) is is_host(accelerator.device_name(0)) is False
    assert is_host(accelerator.device_name()) is False


@pytest.mark.parametrize(
    ("module", "asked"),
    [
        # pin_empty_like: of offload_states(), which a program calls itself.
        (stage_1_and_2, {"current_device_name", "device_name", "pin_memory", "unpin_memory", "pin_empty_like"}),
        (stage3, {"current_device_name", "device_name", "pin_memory", "unpin_memory", "on_accelerator"}),
        (partition_parameters, {"current_device_name", "device_name", "pin_memory", "on_accelerator"}),
    ],
)
def test_deepspeed_asks_its_accelerator_where_things_are(module, asked):
    named = set(re.findall(r"accelerator(?:\(\))?\.(\w+)", inspect.getsource(module)))
    assert {name for name in named if re.search(r"device_name|pin|on_accelerator", name)} == asked
    assert asked <= set(dir(DeepSpeedAccelerator))


def test_deepspeed_names_the_host_cpu():
    line = "self.device = get_accelerator().current_device_name() if not self.cpu_offload else 'cpu'"
    assert line in inspect.getsource(stage_1_and_2.DeepSpeedZeroOptimizer.__init__)


def test_deepspeed_asks_in_no_other_way_where_a_tensor_is():
    """``is_cuda`` and ``get_device`` are those of the one processor."""
    for module in (stage_1_and_2, stage3, partition_parameters, utils, engine):
        assert not re.findall(r"\.is_cuda\b|\.get_device\(\)", inspect.getsource(module)), module.__name__
