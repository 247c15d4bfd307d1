import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.measure.comm import CollectiveRecorder
from bench.measure.memory import StorageMeter


def test_storages_are_counted_once_from_birth_to_release():
    with StorageMeter() as meter:
        a = torch.zeros(1000)
        assert meter.allocated_bytes() == 4000
        view = a.view(10, 100)[2:]
        a.add_(1)
        assert meter.allocated_bytes() == 4000
        b = a + 1
        assert meter.allocated_bytes() == 8000
        del a
        assert meter.allocated_bytes() == 8000  # the view keeps it
        del view
        assert meter.allocated_bytes() == 4000
        del b
    assert meter.allocated_bytes() == 0
    assert meter.peak_allocated_bytes() == 8000


def test_a_new_peak_starts_from_what_is_live():
    with StorageMeter() as meter:
        kept = torch.zeros(10)
        del_me = torch.zeros(1000)
        del del_me
        assert meter.peak_allocated_bytes() == 4040
        meter.reset_peak()
        assert meter.peak_allocated_bytes() == 40
    assert kept.numel() == 10


def test_release_is_seen_after_the_meter_is_gone():
    with StorageMeter() as meter:
        tensor = torch.zeros(1000)
    assert meter.allocated_bytes() == 4000
    del tensor
    gc.collect()
    assert meter.allocated_bytes() == 0


def test_activations_saved_for_backward_are_live_until_backward():
    weight = torch.ones(100, 100, requires_grad=True)
    with StorageMeter() as meter:
        loss = torch.nn.functional.relu(torch.ones(100, 100) @ weight).exp().sum()
        saved = meter.allocated_bytes()
        assert saved == 3 * 40_000 + 4  # input of matmul, output of relu, output of exp; the loss
        loss.backward()
        del loss
        assert meter.allocated_bytes() == 40_000  # the gradient


def test_tensors_without_memory_here_are_not_counted():
    with StorageMeter() as meter:
        shapes = torch.zeros(1000, device="meta")
        sparse = torch.zeros(10, 10).to_sparse()
        assert meter.allocated_bytes() < 1000
    assert shapes.numel() + sparse.numel() == 1100


def test_a_resized_storage_changes_the_count():
    with StorageMeter() as meter:
        tensor = torch.zeros(10)
        tensor.resize_(1000)
        assert meter.allocated_bytes() == 4000


@pytest.fixture
def four_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_every_collective_is_recorded_with_the_bytes_of_its_larger_side(four_ranks):
    shard, whole = torch.zeros(8, dtype=torch.bfloat16), torch.zeros(32, dtype=torch.bfloat16)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, shard),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shard, whole),
        "all_gather": lambda: dist.all_gather(list(whole.chunk(4)), shard),
        "reduce_scatter": lambda: dist.reduce_scatter(shard, list(whole.chunk(4))),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
    }
    with CollectiveRecorder() as recorder:
        for name, call in calls.items():
            recorder.enter_phase(name)
            call()
    assert [event.phase for event in recorder.events] == list(calls)
    for event in recorder.events:
        assert event.op == event.phase
        assert (event.num_elements, event.num_bytes, event.dtype) == (32, 64, "bfloat16")
        assert event.group_size == 4
        assert not event.during_autograd


def test_a_barrier_carries_no_bytes_and_a_subgroup_its_own_size(four_ranks):
    pair = dist.new_group([0, 1])
    with CollectiveRecorder() as recorder:
        dist.barrier()
        dist.all_reduce(torch.zeros(100), group=pair)
    assert [(e.op, e.num_bytes, e.group_size) for e in recorder.events] == [("barrier", 0, 4), ("all_reduce", 400, 2)]


def test_a_group_is_between_nodes_when_its_ranks_are_on_more_than_one(four_ranks):
    interleaved = ["0", "1", "0", "1"]
    groups = [dist.new_group([0, 1]), dist.new_group([0, 2]), dist.group.WORLD]
    with CollectiveRecorder(interleaved) as recorder:
        for group in groups:
            dist.all_reduce(torch.zeros(100), group=group)
    assert [event.group for event in recorder.events] == ["inter-node", "intra-node", "inter-node"]
    with CollectiveRecorder(["n"] * 4) as recorder:
        dist.all_reduce(torch.zeros(100))
    assert recorder.events[0].group == "intra-node"


def test_a_collective_issued_inside_backward_is_told_apart(four_ranks):
    weight = torch.ones(10, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    with CollectiveRecorder() as recorder:
        (weight * 2).sum().backward()
        dist.all_reduce(weight.grad)
    assert [event.during_autograd for event in recorder.events] == [True, False]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_functional_collective_is_recorded_too(four_ranks):
    import torch.distributed._functional_collectives as functional

    with CollectiveRecorder() as recorder:
        functional.all_reduce(torch.zeros(100), "sum", dist.group.WORLD).wait()
    (event,) = recorder.events
    assert (event.op, event.num_bytes) == ("functional.all_reduce", 400)


def test_nothing_is_recorded_outside_the_recorder(four_ranks):
    with CollectiveRecorder() as recorder:
        pass
    dist.all_reduce(torch.zeros(10))
    assert recorder.events == []


def test_a_storage_that_python_code_resizes_is_seen():
    """As torch's fully_shard does with gathered parameters: no operator tells."""
    with StorageMeter() as meter:
        tensor = torch.empty(1000)
        tensor.untyped_storage().resize_(0)
        assert meter.allocated_bytes() == 0
        log = meter.begin_log()
        tensor.untyped_storage().resize_(4000)
        assert meter.allocated_bytes() == 4000
        assert sum(log.live(len(log)).values()) == 4000
    resize = torch.UntypedStorage.resize_
    with StorageMeter():
        assert torch.UntypedStorage.resize_ is not resize
    assert torch.UntypedStorage.resize_ is resize


def test_of_a_dtensor_its_shard_is_counted_not_the_whole():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        with StorageMeter() as meter:
            shard = torch.zeros(250)
            whole = DTensor.from_local(shard, mesh, [Shard(0)]).detach()
            assert whole.numel() == 1000
            assert meter.allocated_bytes() == 1000
    finally:
        dist.destroy_process_group()
