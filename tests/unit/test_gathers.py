"""Stage 3's rules on a chain of three layers, small enough to follow by hand."""

from typing import Any

import pytest

from bench.models.modules import Module, Parameter
from bench.zero.gathers import Limits, gathers
from bench.zero.trace import micro_step

SIZES = (100, 100, 100)
NOTHING_KEPT = Limits(
    prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=0, param_persistence_threshold=0
)


def layer(number: int, numel: int, **changes: Any) -> Module:
    return Module(f"l{number}", (Parameter(f"w{number}", numel, number),), **changes)


def chain(sizes: tuple[int, ...] = SIZES, block: bool = False) -> Module:
    """Layers one after another; as one block for checkpointing if asked."""
    layers = tuple(layer(number, numel, grad_input=number > 0 or block) for number, numel in enumerate(sizes))
    if not block:
        return Module("", children=layers, grad_input=False)
    embedding = layer(len(sizes), 40, grad_input=False)
    return Module("", children=(embedding, Module("block", children=layers, block=True)), grad_input=False)


def fetched(model: Module, limits: Limits, *, world_size: int = 2, gas: int = 1, checkpointing: bool = False):
    calls = gathers(
        model,
        limits,
        world_size=world_size,
        gradient_accumulation_steps=gas,
        activation_checkpointing=checkpointing,
        num_steps=4,
    )
    return [(call.phase, "+".join(p.name for p in call.carries), call.num_elements) for call in calls]


def test_the_trace_is_a_mirror_and_an_embedding_is_released_by_nobody() -> None:
    events = [(event.kind, event.module.name, event.phase) for event in micro_step(chain((1, 1)), False)]
    assert events == [
        ("fetch", "", "forward"),
        ("fetch", "l0", "forward"),
        ("release", "l0", "forward"),
        ("fetch", "l1", "forward"),
        ("release", "l1", "forward"),
        ("release", "", "forward"),
        ("fetch", "", "backward"),
        ("fetch", "l1", "backward"),
        ("release", "l1", "backward"),
        ("fetch", "l0", "backward"),
    ]


def test_a_recomputation_stops_at_the_last_module_that_saves_something() -> None:
    events = [(event.kind, event.module.name) for event in micro_step(chain((1, 1), block=True), True)]
    backward = events[events.index(("release", "")) + 1 :]
    assert backward == [
        ("fetch", ""),
        ("fetch", "block"),
        ("fetch", "l1"),
        ("fetch", "l0"),
        ("release", "l0"),
        ("fetch", "l1"),
        ("release", "l1"),
        ("fetch", "l0"),
        ("release", "l0"),
        ("release", "block"),
        ("fetch", "l2"),
    ]


def test_with_nothing_kept_every_use_gathers() -> None:
    forward = [("forward", f"w{number}", 100) for number in range(3)]
    backward = [("backward", f"w{number}", 100) for number in (2, 1, 0)]
    assert fetched(chain(), NOTHING_KEPT) == forward + backward
    assert fetched(chain(), NOTHING_KEPT, gas=2) == (forward + backward) * 2


def test_reuse_within_the_distance_keeps_the_last_layers_for_backward() -> None:
    limits = Limits(
        prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=101, param_persistence_threshold=0
    )
    # Behind the release of l1 in forward come l2 (100), l2 (200): the distance is used up before l1 is met again.
    assert [name for phase, name, _ in fetched(chain(), limits) if phase == "backward"] == ["w1", "w0"]
    further = Limits(
        prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=201, param_persistence_threshold=0
    )
    assert [name for phase, name, _ in fetched(chain(), further) if phase == "backward"] == ["w0"]


def test_prefetch_runs_up_to_its_bucket_and_gathers_in_one_call() -> None:
    limits = Limits(
        prefetch_bucket_size=150, max_live_parameters=1000, max_reuse_distance=0, param_persistence_threshold=0
    )
    # While the root is entered l0 and l1 are fetched ahead: the second one goes over the bucket's 150.
    assert fetched(chain(), limits)[0] == ("forward", "w0+w1", 200)


def test_prefetch_stops_at_the_limit_of_live_parameters() -> None:
    limits = Limits(
        prefetch_bucket_size=1000, max_live_parameters=100, max_reuse_distance=0, param_persistence_threshold=0
    )
    assert fetched(chain(), limits)[:2] == [("forward", "w0", 100), ("forward", "w1", 100)]


def test_persistent_parameters_are_gathered_once_after_the_step() -> None:
    limits = Limits(prefetch_bucket_size=0, max_live_parameters=0, max_reuse_distance=0, param_persistence_threshold=50)
    found = fetched(chain((10, 100, 30)), limits, gas=2)
    assert [call for call in found if call[0] == "step"] == [("step", "w0", 10), ("step", "w2", 30)]
    assert {name for phase, name, _ in found if phase != "step"} == {"w1"}


def test_a_budget_for_persistence_skips_what_does_not_fit() -> None:
    limits = Limits(
        prefetch_bucket_size=0,
        max_live_parameters=0,
        max_reuse_distance=0,
        param_persistence_threshold=50,
        model_persistence_threshold=35,
    )
    assert [call for call in fetched(chain((10, 30, 20)), limits) if call[0] == "step"] == [
        ("step", "w0", 10),
        ("step", "w2", 20),
    ]


def test_sizes_are_padded_to_the_number_of_ranks() -> None:
    assert {size for *_, size in fetched(chain((101, 101)), NOTHING_KEPT, world_size=4)} == {104}
    assert fetched(chain(), NOTHING_KEPT, world_size=1) == []


def test_recomputation_gathers_what_was_let_go() -> None:
    found = fetched(chain((100, 100), block=True), NOTHING_KEPT, checkpointing=True)
    assert [name for phase, name, _ in found if phase == "backward"] == ["w1", "w0", "w0", "w2"]


@pytest.mark.parametrize("sequential", [True, False])
def test_all_reduce_for_fetches_takes_only_calls_of_several_parameters(sequential: bool) -> None:
    limits = Limits(
        prefetch_bucket_size=150,
        max_live_parameters=1000,
        max_reuse_distance=0,
        param_persistence_threshold=0,
        use_all_reduce_for_fetch_params=True,
        allgather_sequential=sequential,
    )
    calls = gathers(
        chain(),
        limits,
        world_size=2,
        gradient_accumulation_steps=1,
        activation_checkpointing=False,
        num_steps=3,
    )
    together = {call.op for call in calls if len(call.carries) > 1}
    assert together == (set() if sequential else {"all_reduce"})
    assert {call.op for call in calls if len(call.carries) == 1} == {"all_gather_into_tensor"}
