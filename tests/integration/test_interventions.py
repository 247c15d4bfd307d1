"""What emulation assumes of torch 2.13 and DeepSpeed 0.19.8, one test each: a release that changes it is named here."""

import ast
import inspect
import re
from pathlib import Path

import deepspeed
import pytest
import torch
import torch.distributed as dist
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
from deepspeed.comm.torch import build_shm_op
from deepspeed.runtime.zero import stage3, stage_1_and_2
from deepspeed.runtime.zero import utils as zero_utils
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import bench.emulate.allocator as allocator
from bench.emulate import interventions
from bench.emulate.accelerator import PATHS, CudaLikeAccelerator, TargetAccelerator
from bench.emulate.allocator import Allocator
from bench.emulate.emulator import Emulator
from bench.emulate.hollow import AddressSpace
from bench.measure.comm import _NAMES, CollectiveRecorder

RANK, WORLD_SIZE = 3, 8
BEHAVIOURS = ("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure")


class Operators(TorchDispatchMode):
    """Notes the name of each operator that is dispatched."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def joined(monkeypatch):
    """Be rank 3 of 8 as an emulated rank is, and leave no trace of it."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(real_accelerator, "ds_accelerator", real_accelerator.get_accelerator())
    monkeypatch.setattr(deepspeed.comm.comm, "cdb", None)
    interventions.choose_accelerator("cuda-like", Allocator(2**36))
    interventions.join_group(RANK, WORLD_SIZE)
    yield
    dist.destroy_process_group()


def test_torch_makes_storages_at_addresses_that_nobody_owns():
    storage = torch._C._construct_storage_from_data_pointer(1 << 53, torch.device("cpu"), 2**40)
    assert (storage.data_ptr(), storage.nbytes()) == (1 << 53, 2**40)
    del storage  # and frees nothing


def test_a_storage_keeps_its_python_object_and_what_is_noted_on_it():
    tensor = torch.zeros(40)
    tensor.untyped_storage().noted = "by bench.emulate.emulator"
    assert tensor[3:].untyped_storage().noted == "by bench.emulate.emulator"


def test_the_dispatch_mode_may_say_that_dynamo_need_not_be_skipped():
    assert TorchDispatchMode._should_skip_dynamo.__func__
    assert Emulator._should_skip_dynamo() is False


@pytest.mark.parametrize("name", sorted(set(_NAMES) - {"monitored_barrier_"}))
def test_a_c10d_operator_returns_a_work_alone_or_after_its_first_argument(name):
    schema = getattr(torch.ops.c10d, name).default._schema
    *before, work = [str(each.type) for each in schema.returns]
    assert work == str(torch._C._get_schema("c10d::barrier", "").returns[0].type)
    assert before in ([], [str(schema.arguments[0].type)])


def test_a_fake_work_is_what_a_c10d_operator_may_return(joined):
    assert FakeWork().boxed() is not None
    with Emulator():
        assert dist.all_reduce(torch.zeros(40), async_op=True).wait()  # one return
        assert dist.broadcast(torch.zeros(40), 0, async_op=True).wait()  # two


def test_the_fake_backend_needs_nobody_else(joined):
    assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == ("fake", RANK, WORLD_SIZE)
    half = dist.new_group([1, RANK])
    assert (dist.get_rank(half), dist.get_world_size(half)) == (1, 2)


def test_deepspeed_takes_a_group_that_is_there(joined):
    assert deepspeed.comm.is_initialized()
    assert (deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()) == (RANK, WORLD_SIZE)
    assert deepspeed.comm.get_local_rank() == 0
    with Emulator():
        assert deepspeed.comm.all_reduce(torch.zeros(40), async_op=True).wait()


def test_deepspeed_gets_its_shared_memory_collective_from_this_builder(joined):
    assert '.create_op_builder("ShareMemCommBuilder")' in inspect.getsource(build_shm_op)
    assert CPU_Accelerator().create_op_builder("ShareMemCommBuilder") is not None
    assert build_shm_op() is None


@pytest.mark.parametrize("kind", [TargetAccelerator, CudaLikeAccelerator])
def test_deepspeeds_accelerator_has_every_method_that_is_overridden(kind):
    overridden = {name for name in vars(kind) if not name.startswith("_")}
    assert overridden
    assert overridden <= set(dir(DeepSpeedAccelerator))
    for name in overridden - {"Stream", "Event"}:
        asked = list(inspect.signature(getattr(CUDA_Accelerator, name)).parameters)
        assert len(inspect.signature(getattr(kind, name)).parameters) == len(asked), name


def test_a_path_answers_as_deepspeeds_accelerator_of_that_device():
    real = {"cpu": CPU_Accelerator(), "cuda-like": CUDA_Accelerator()}
    found = {name: {path: getattr(each, name)() for path, each in real.items()} for name in BEHAVIOURS}
    assert found == {name: {"cpu": True, "cuda-like": False} for name in BEHAVIOURS}
    for path, kind in PATHS.items():
        target = kind(Allocator(2**36))
        assert {name: getattr(target, name)() for name in BEHAVIOURS} == {
            name: found[name][path] for name in BEHAVIOURS
        }
        assert set(target.supported_dtypes()) == set(CUDA_Accelerator().supported_dtypes())


def test_no_other_behaviour_of_the_device_is_asked_for():
    """A new question with another answer on CUDA than on CPU would have to be answered by CudaLikeAccelerator too."""
    named = {
        name for name in dir(DeepSpeedAccelerator) if re.match(r"(is|use|resolves|handles|prefer|supports)_", name)
    }
    assert named == {
        *BEHAVIOURS,
        "is_available",
        "is_bf16_supported",
        "is_current_stream_capturing",
        "is_fp16_supported",
        "is_fp64_supported",
        "is_pinned",
        "is_triton_supported",
        "prefer_triton_grouped_mm",
        "supports_nvtx_domain",
    }


def test_stage_3_reads_these_memory_statistics():
    read = re.findall(r"memory_stats\.get\(\"(\w+)\"\)", inspect.getsource(stage3))
    assert set(read) == {"num_alloc_retries"} <= set(TargetAccelerator(Allocator(2**36)).memory_stats())


def asked_of_dist():
    """Return what each function of deepspeed.runtime.zero.utils uses of ``dist``."""
    functions = [node for node in ast.parse(inspect.getsource(zero_utils)).body if isinstance(node, ast.FunctionDef)]
    found = {each.name: set(re.findall(r"\bdist\.(\w+)", ast.unparse(each))) for each in functions}
    return {name: used for name, used in found.items() if used}


def test_stage_3_compares_lists_with_rank_0_by_its_rank_and_broadcasts():
    assert asked_of_dist() == {
        "assert_ints_same_as_other_ranks": {"get_rank"},
        "assert_lst_len_same_as_other_ranks": {"get_rank", "broadcast"},
        "get_lst_from_rank0": {"get_rank", "broadcast"},
        # Rank 0 writes a line of the log; others need not.
        "is_zero_supported_optimizer": {"get_rank"},
        "apply_to_tensors_only": {"get_rank"},
        # Would find the groups of rank 0, if anybody called it.
        "_initialize_parameter_parallel_groups": {"get_rank", "get_world_size", "new_group"},
    }
    for module in (stage3, stage_1_and_2, deepspeed.runtime.engine):
        assert "_initialize_parameter_parallel_groups" not in inspect.getsource(module)


def test_without_rank_0_the_comparison_fails_and_the_intervention_mends_it(joined):
    ints = list(range(40))
    with Emulator() as emulator:
        with pytest.raises(RuntimeError, match="disagreement on list"):
            zero_utils.assert_ints_same_as_other_ranks(ints)
        recorder = CollectiveRecorder(["0"] * WORLD_SIZE)
        with interventions.agreement_with_rank_0(), emulator.observed_by(recorder):
            zero_utils.assert_ints_same_as_other_ranks(ints)
    assert [(event.op, event.num_elements) for event in recorder.events] == [("broadcast", 1), ("broadcast", 40)]


def test_record_stream_wants_a_stream_of_a_real_device():
    stream = CudaLikeAccelerator(Allocator(2**36)).current_stream()
    with pytest.raises((TypeError, RuntimeError)):
        torch.zeros(4).record_stream(stream)
    with interventions.no_record_stream():
        torch.zeros(4).record_stream(stream)


def test_the_shape_function_of_grouped_mm_still_refuses_fp32():
    def shape(dtype):
        with FakeTensorMode():
            tokens, experts = torch.empty(24, 16, dtype=dtype), torch.empty(3, 16, 32, dtype=dtype)
            return torch._grouped_mm(tokens, experts, offs=torch.empty(3, dtype=torch.int32)).shape

    assert shape(torch.bfloat16) == (24, 32)
    with pytest.raises(RuntimeError, match="inputs of BF16 type"):
        shape(torch.float32)


def test_views_past_the_dispatcher_are_those_that_it_would_make():
    def views(tensor):
        taken = tensor.narrow(0, 3, 4), tensor[3:7], tensor[::2], tensor[5], tensor[2:, None], tensor[tensor > 3]
        return [(view.shape, view.stride(), view.storage_offset(), view.tolist()) for view in taken]

    tensor = torch.arange(10)
    expected = views(tensor)
    recorder = Operators()
    with interventions.views_undispatched(), recorder:
        found = views(tensor)
        weight = torch.nn.Parameter(torch.zeros(10))
        weight[2:5].sum().backward()
    assert found == expected
    assert recorder.names.count("aten::slice") == 1  # of the two axes at once, and none of narrow and tensor[3:7]
    assert weight.grad.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_tolist_and_numpy_pass_no_dispatcher_and_are_seen_all_the_same():
    tensor, seen, recorder = torch.tensor([1, 2]), [], Operators()
    with recorder, interventions.reads_seen(lambda read, how: seen.append((read is tensor, how))):
        assert tensor.tolist() == tensor.numpy().tolist() == [1, 2]
    assert seen == [(True, "tolist"), (True, "numpy")]
    assert not [name for name in recorder.names if name not in ("aten::detach", "aten::alias")]


def test_a_tensor_without_memory_is_printed_without_its_content():
    hollow = AddressSpace().tensor((2, 3), (3, 1), torch.bfloat16, 12)
    with interventions.content_unprinted():
        assert repr(hollow) == "tensor(without content, size=(2, 3), dtype=torch.bfloat16)"
        assert repr(torch.nn.Parameter(hollow, requires_grad=False)).startswith("Parameter containing:\ntensor(without")
        assert repr(torch.tensor([1, 2])) == "tensor([1, 2])"


def test_interventions_are_undone():
    def now():
        methods = (
            getattr(torch.Tensor, name) for name in ("record_stream", "narrow", "__getitem__", "tolist", "numpy")
        )
        return (*methods, zero_utils.dist, torch._tensor_str._str)

    def fail():
        assert not set(now()) & set(before)
        assert (zero_utils.dist.get_rank(), zero_utils.dist.broadcast) == (0, deepspeed.comm.broadcast)
        raise ZeroDivisionError

    before = now()
    with (
        pytest.raises(ZeroDivisionError),
        interventions.no_record_stream(),
        interventions.agreement_with_rank_0(),
        interventions.views_undispatched(),
        interventions.reads_seen(print),
        interventions.content_unprinted(),
    ):
        fail()
    assert now() == before


def test_the_sizes_of_the_cuda_allocator_are_those_of_torchs_header():
    header = (Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h").read_text()
    sizes = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", header))
    sizes |= re.findall(r"std::atomic<size_t> (large_segment_size_)\{(\d+)\};", header)
    assert {name: int(size) for name, size in sizes.items()} == {
        "kMinBlockSize": allocator._MIN_BLOCK,
        "kSmallSize": allocator._SMALL_SIZE,
        "kSmallBuffer": allocator._SMALL_SEGMENT,
        "kMinLargeAlloc": allocator._MIN_OWN_SEGMENT,
        "kRoundLarge": allocator._ROUND_LARGE,
        "large_segment_size_": allocator._LARGE_SEGMENT,
    }
    defaults = {"max_split_size_{std::numeric_limits<size_t>::max()}", "garbage_collection_threshold_{0}"}
    assert all(default in header for default in defaults)
    assert "use_expandable_segments_{false}" in header
