"""What an emulated program can read: small tensors are real, the rest is a guess that is noted, or an error."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.emulate.emulator import Emulator
from bench.emulate.hollow import is_hollow
from bench.emulate.shapes import NotEmulatedError


@pytest.fixture
def emulator():
    with Emulator() as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def failures_can_be_shown(monkeypatch):
    """What pytest prints of a failure, its arguments, would end the process."""
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: f"tensor of {tuple(self.shape)}, {self.dtype}")


def reads(tensor):
    return tensor.item()


READER = f"{__name__}.reads"

EXACT = {
    "list": (lambda: torch.tensor([3, 1, 2]).sort().values.tolist(), [1, 2, 3]),
    "step counter": (lambda: (torch.zeros(()) + 1).add_(1).item(), 2.0),
    "bias correction": (lambda: (1 - 0.5 ** (torch.ones(()) * 3)).item(), 0.875),
    "positions": (lambda: torch.arange(4000)[3999].item(), 3999),
    "diff": (lambda: (torch.arange(4000).diff() == 1).all().item(), True),
    "cumsum": (lambda: torch.arange(4000).cumsum(0)[-1].item(), 7998000),
    "mask": (lambda: torch.ones(64, 64, dtype=torch.bool).tril().sum().item(), 2080),
    "token ids": (lambda: (torch.randint(7, 8, (4, 4000)) == 7).all().item(), True),
    "written by position": (lambda: torch.zeros(8).index_fill_(0, torch.tensor([1]), 5.0)[1].item(), 5.0),
    "whole list": (lambda: torch._foreach_add([torch.tensor(1.0), torch.tensor(2.0)], 1)[1].item(), 3.0),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_is_known_is_computed(emulator, name):
    call, value = EXACT[name]
    assert call() == value
    assert not emulator.guesses


GUESSED = {
    "sum": (lambda: torch.zeros(40).sum(), 1.0, "aten::sum"),
    "finite": (lambda: torch.isfinite(torch.zeros(40)).all(), False, "aten::all"),
    "greater": (lambda: (torch.zeros(40) > 0).any(), False, "aten::any"),
    "arg max": (lambda: torch.zeros(40).argmax(), 0, "aten::argmax"),
    "one element": (lambda: torch.zeros(40)[7], 1.0, "content that is not there"),
    "one integer": (lambda: torch.zeros(40).long()[7], 0, "content that is not there"),
    "computed from a guess": (lambda: torch.zeros(40).sum() * 2 + 1, 3.0, "aten::sum"),
    "copied": (lambda: torch.zeros(4).copy_(torch.zeros(40)[:4])[0], 0.0, "aten::copy_"),
    "added in place": (lambda: torch.zeros(()).add_(torch.zeros(40)[3]), 0.0, "aten::add_"),
    "moved": (lambda: torch.zeros(40).sum().to(torch.float64), 1.0, "aten::sum"),
    "stacked": (lambda: torch.stack([torch.zeros(40).sum(), torch.tensor(2.0)])[1], 2.0, "aten::sum"),
}


@pytest.mark.parametrize("name", GUESSED)
def test_what_is_not_there_is_a_guess_with_its_reader(emulator, name):
    call, value, origin = GUESSED[name]
    for _ in range(3):
        found = reads(call())
        assert (found, type(found)) == (value, type(value))
    assert emulator.guesses == {(READER, origin): 3}
    assert emulator.guessed == {(READER, origin): repr(value)}


def test_tensors_are_taken_for_equal(emulator):
    assert torch.equal(torch.zeros(40), torch.ones(40))
    assert list(emulator.guesses.values()) == [1]


def test_small_tensors_among_others_in_a_list_are_guesses_once_written_to(emulator):
    small, large = torch.zeros(2), torch.zeros(40)
    torch._foreach_add_([small, large], 1.0)
    assert reads(small[0]) == 0.0
    assert emulator.guesses == {(READER, "aten::_foreach_add_"): 1}


def test_a_guess_that_a_list_is_changed_by_stays_one(emulator):
    steps = [torch.zeros(()), torch.zeros(())]
    torch._foreach_add_(steps, [torch.zeros(40).sum()] * 2)
    assert reads(steps[1]) == 1.0
    assert emulator.guesses == {(READER, "aten::sum"): 1}


def test_what_the_benchmark_itself_reads_is_not_noted(emulator):
    code = compile("def reads(tensor): return tensor.item()", "loop.py", "exec")
    names = {"__name__": "bench.worker.loop"}
    exec(code, names)
    assert names["reads"](torch.zeros(40).sum()) == 1.0
    assert not emulator.guesses


REFUSED = {
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "allclose": lambda x: torch.allclose(x, x),
    "out that is resized": lambda x: torch.add(x, 1, out=torch.empty(0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_content_is_refused(emulator, name):
    x = torch.zeros(40)
    with pytest.raises(NotEmulatedError, match=r"aten\.\w+"):
        REFUSED[name](x)


def test_a_storage_that_is_resized_is_refused_by_torch(emulator):
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.zeros(40).untyped_storage().resize_(0)


PAIRS = {
    "dtype": (lambda: torch.zeros(40) * 2, lambda: torch.zeros(40, dtype=torch.bfloat16) * 2),
    "shape": (lambda: torch.zeros(40) * 2, lambda: torch.zeros(41) * 2),
    "stride": (lambda: torch.zeros(20, 20) * 2, lambda: torch.zeros(20, 20).t() * 2),
    "keepdim": (lambda: torch.zeros(40, 40).sum(1), lambda: torch.zeros(40, 40).sum(1, keepdim=True)),
    "dimension": (lambda: torch.zeros(40, 30).sum(0), lambda: torch.zeros(40, 30).sum(1)),
    "device": (lambda: torch.zeros(40) + 1, lambda: torch.zeros(40, device="meta") + 1),
    "dtype asked for": (lambda: torch.zeros(40).sum(0, True), lambda: torch.zeros(40).sum(0, True, dtype=torch.double)),
    "scalar: float, int": (lambda: torch.arange(40) * 2, lambda: torch.arange(40) * 2.0),
    "scalar: int, bool": (lambda: torch.zeros(40).bool() * 1, lambda: torch.zeros(40).bool() * True),
    "scalar: float, int, bool mask": (lambda: torch.zeros(40).bool() * 1.0, lambda: torch.zeros(40).bool() * 1),
    "arange of a float": (lambda: torch.arange(20.0), lambda: torch.arange(30.0)),
    "lists": (
        lambda: torch._foreach_mul([torch.zeros(40), torch.zeros(30)], 2.0),
        lambda: torch._foreach_mul([torch.zeros(30), torch.zeros(40)], 2.0),
    ),
    "tensor or scalar": (lambda: torch.zeros(40).long() * torch.tensor(2.0), lambda: torch.zeros(40).long() * 2.0),
    "small or not": (lambda: torch.zeros(16) + 1, lambda: torch.zeros(17) + 1),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("turn", [1, -1])
def test_a_rule_is_never_used_for_another_call(name, turn):
    def described(results):
        leaves = results if isinstance(results, list | tuple) else [results]
        return [(leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.nbytes) for leaf in leaves]

    one, two = PAIRS[name][::turn]
    expected = [described(one()), described(two())]
    with Emulator():
        found = [[described(one()), described(two())] for _ in range(2)]
    assert found == [expected, expected]


def test_small_is_up_to_16_elements(emulator):
    assert not is_hollow(torch.zeros(16) + torch.zeros(16))
    assert is_hollow(torch.zeros(17))
    assert not is_hollow(torch.zeros(17, dtype=torch.long))


@pytest.fixture
def group():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


COLLECTIVES = {
    "all_reduce": lambda: dist.all_reduce(torch.zeros(40), async_op=True),
    "broadcast": lambda: dist.broadcast(torch.zeros(40), 0, async_op=True),
    "reduce": lambda: dist.reduce(torch.zeros(40), 0, async_op=True),
    "all_gather": lambda: dist.all_gather([torch.zeros(40) for _ in range(4)], torch.zeros(40), async_op=True),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.zeros(160), torch.zeros(40), async_op=True),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.zeros(40), torch.zeros(160), async_op=True),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(40), torch.zeros(40), async_op=True),
    "barrier": lambda: dist.barrier(async_op=True),
}


@pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_has_ended_when_it_returns(group, name):
    with Emulator():  # one that read or wrote would end this process
        work = COLLECTIVES[name]()
    assert work.wait()


def test_what_small_tensors_hold_after_a_collective_is_a_guess(group):
    with Emulator() as emulator:
        flag, gathered = torch.tensor(5.0), [torch.zeros(2) for _ in range(4)]
        dist.all_reduce(flag)
        dist.all_gather(gathered, torch.tensor([1.0, 2.0]))
        assert reads(flag) == 5.0
        assert [reads(each[1]) for each in gathered] == [2.0] * 4  # as if all held what this rank holds
    assert emulator.guesses == {(READER, "c10d::allreduce_"): 1, (READER, "c10d::allgather_"): 4}


def test_what_is_read_past_the_dispatcher_is_noted_or_refused(emulator):
    guess, known, large = torch.zeros(40).sum(), torch.tensor([3, 4]), torch.zeros(40)
    emulator.saw(known, "tolist")
    assert emulator.guesses == {}
    emulator.saw(guess, "tolist")
    assert [(origin, count) for (_, origin), count in emulator.guesses.items()] == [("aten::sum", 1)]
    with pytest.raises(NotEmulatedError, match=r"reads the content of a tensor by numpy\(\)"):
        emulator.saw(large, "numpy")


def test_a_small_tensor_that_hollow_ones_are_gathered_into_is_a_guess(emulator):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        slots = [torch.zeros(4), torch.zeros(4)]
        dist.all_gather(slots, torch.zeros(40)[:4])
        assert float(slots[1].sum()) == 0.0
        assert list(emulator.guesses.values()) == [1]
    finally:
        dist.destroy_process_group()
