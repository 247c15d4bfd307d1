"""An emulated rank counts what the same rank of a real gloo run counts: every collective, and memory to the byte."""

from itertools import product

import pytest
from agreement import EXPERTS, MODELS, SMALL_BUCKETS, STRATEGIES, WORLD_SIZES, cross, emulated, real
from forked import planned

pytestmark = pytest.mark.ranks

GPT2 = {"model": "gpt2-tiny"}  # with tied embeddings
MIXTRAL = {"model": "mixtral-tiny"} | EXPERTS["mixtral-tiny"]
BATCHED = {"model": "mixtral-tiny", "experts_implementation": "batched_mm"}
GAS = {"gradient_accumulation_steps": 2}
RECOMPUTE = {"activation_checkpointing": True}
SMALL = {"zero_optimization": SMALL_BUCKETS}
# Three ranks divide neither model's parameters.
UNEVEN = [
    {"strategy": "z1", "world_size": 3, "zero_optimization": {"round_robin_gradients": True}} | GAS,
    {"strategy": "z2", "world_size": 3} | GPT2 | SMALL,
    {"strategy": "z3", "world_size": 3} | GPT2 | SMALL,
]
CELLS = [
    *UNEVEN,
    {"strategy": "z0", "dtype": "fp32", "optimizer": {"implementation": "foreach"}} | GAS,
    {"strategy": "z1", "dtype": "fp32"} | BATCHED,
    {"strategy": "z2"} | RECOMPUTE | GAS | SMALL,
    {"strategy": "z3"} | MIXTRAL | RECOMPUTE | SMALL,
    # Its peak is gloo's own copy of a bucket.
    {"strategy": "z3", "world_size": 4} | RECOMPUTE | GAS,
]
# One rank with small buckets, so that the optimizer's temporaries make the peak.
OPTIMIZERS = {
    name: {"strategy": "z2", "world_size": 1, "optimizer": {"implementation": name}} | SMALL
    for name in ("for-loop", "foreach", "fused")
}


def name(settings):
    return planned(**settings).label


@pytest.fixture(scope="module")
def measured(ranks):
    """Return a function that gives what every rank of a real run counted; a cell runs once."""
    seen = {}

    def measure(settings):
        key = repr(settings)
        if key not in seen:
            seen[key] = real(ranks, settings)
        return seen[key]

    return measure


def assert_equal(found, expected):
    assert found["collectives"] == expected["collectives"]
    assert found["points"] == expected["points"]
    assert found == expected


@pytest.mark.parametrize("settings", CELLS, ids=name)
def test_every_rank_is_emulated_exactly(ranks, measured, settings):
    for rank, expected in enumerate(measured(settings)):
        assert_equal(emulated(ranks, settings, rank), expected)


@pytest.mark.parametrize("settings", UNEVEN, ids=name)
def test_the_last_rank_of_an_uneven_world_is_emulated_exactly(ranks, measured, settings):
    expected = measured(settings)
    assert_equal(emulated(ranks, settings, "last"), expected[-1])
    # Stages 1 and 2 pad the end of the last shard alone, stage 3 every tensor.
    assert (expected[-1] == expected[0]) == (settings["strategy"] == "z3")


def test_the_optimizers_implementation_changes_the_peak_as_in_a_real_run(ranks, measured):
    peaks = {}
    for implementation, settings in OPTIMIZERS.items():
        (expected,) = measured(settings)
        assert_equal(emulated(ranks, settings, 0), expected)
        peaks[implementation] = expected["peak_allocated_bytes"]
    # Of a shard, which is one tensor, the for-loop makes two temporaries.
    assert peaks["for-loop"] > max(peaks["foreach"], peaks["fused"])


@pytest.mark.parametrize(
    ("strategy", "overlap"), [("z0", False), ("z1", True), ("z2", True), ("z3", False), ("z3", True)]
)
def test_the_accelerator_path_changes_no_collective_and_only_the_copy_that_gloo_makes(ranks, strategy, overlap):
    settings = {"strategy": strategy, "world_size": 4, "zero_optimization": {"overlap_comm": overlap}}
    cpu, cuda = (emulated(ranks, settings, 0, path) for path in ("cpu", "cuda-like"))
    assert cuda["collectives"] == cpu["collectives"]
    if strategy != "z3":
        assert cuda == cpu
        return
    # Only stage 3 reduces and scatters, which gloo does on a copy and NCCL in place: here that copy makes the peak.
    copy = max(each["num_bytes"] for each in cpu["collectives"] if each["op"] == "reduce_scatter_tensor")
    assert cpu["peak_allocated_bytes"] - copy <= cuda["peak_allocated_bytes"] < cpu["peak_allocated_bytes"]
    for one in (cpu, cuda):
        del one["peak_allocated_bytes"]
        assert one["points"].pop()["point"] == "peak"
    assert cuda == cpu


@pytest.mark.cross
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [settings for line in product(MODELS, STRATEGIES, WORLD_SIZES) for settings in cross(*line)],
    ids=name,
)
def test_the_full_cross_is_emulated_exactly(ranks, settings):
    for rank, expected in enumerate(real(ranks, settings)):
        assert_equal(emulated(ranks, settings, rank), expected)
