"""Variants of the stages in real ranks: hpZ's second shards, BF16_Optimizer, gradients reduced to their owners."""

import gzip
import json

import left_collectives
import pytest
from forked import planned

from bench.models.catalog import load_config
from bench.models.modules import tensor_sizes

pytestmark = pytest.mark.ranks

PSI = 315_968
GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
STEPS = [pytest.param(1, marks=pytest.mark.slow), 2]  # micro-steps; with two, what holds for one shows too
NOT_DATA = 8  # elements, at most: flags and norms


def hpz(steps):
    # Buckets that never release early: every parameter is gathered once for forward and once for backward.
    return {
        "strategy": "zpp-hpz",
        "world_size": 4,
        "gradient_accumulation_steps": steps,
        "zero_optimization": {
            "zero_hpz_partition_size": 2,
            "reduce_bucket_size": 400_000,
            "stage3_prefetch_bucket_size": 100_000,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
    }


PLAIN = [{"strategy": "z1-bf16-optimizer"}, {"strategy": "z2-multi-rank-off"}, {"strategy": "z1-multi-rank-off"}]


@pytest.fixture(scope="module")
def real(ranks):
    """Return a function: the record of a real run, and what every rank sent in its last counted step."""
    seen = {}

    def run(settings):
        key = repr(settings)
        if key not in seen:
            cell = planned(**settings)
            record = ranks.measure(cell, left_collectives.NAME)
            files = [ranks.path / f"collectives.rank{rank}.json" for rank in range(cell.cell.world_size)]
            seen[key] = record, [json.loads(file.read_text()) for file in files]
            for file in files:
                file.unlink()
        return seen[key]

    return run


def data(events):
    return [event for event in events if event["num_elements"] > NOT_DATA]


def moved(events):
    """Return elements by operation, phase and ranks of the group."""
    sums = {}
    for event in data(events):
        key = event["op"], event["phase"], event["group_size"]
        sums[key] = sums.get(key, 0) + event["num_elements"]
    return sums


@pytest.mark.parametrize("steps", STEPS)
def test_hpz_gathers_over_all_ranks_once_per_optimizer_step(real, steps):
    record, sent = real(hpz(steps))
    assert (record.status, record.validity) == ("completed", "valid")
    # DeepSpeed keeps the size in a group alone, and no formula counts these gathers.
    assert [(each.check, each.verdict) for each in record.findings] == [
        ("effective settings", "note"),
        ("traffic", "note"),
    ]
    for events in sent:
        found = moved(events)
        assert found.pop((SCATTER, "backward", 4)) == steps * PSI
        assert found.pop((GATHER, "forward", 4)) == PSI
        # From then on each rank's half of the parameters is in its own pair of ranks.
        assert {key[0] for key in found} == {GATHER}
        assert {key[2] for key in found} == {2}
        assert found[GATHER, "backward", 2] == steps * PSI
        assert found.get((GATHER, "forward", 2), 0) == (steps - 1) * PSI


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_an_emulated_hpz_rank_counts_what_a_real_one_counts(ranks, real, steps, rank):
    record, sent = real(hpz(steps))
    target = {"accelerator_path": "cpu", "rank": rank}
    found = ranks.measure(planned(mode="emulated", emulation=target, **hpz(steps)))
    assert (found.status, found.validity) == ("completed", "valid")
    trace = json.loads(gzip.decompress((ranks.path / found.emulation.trace).read_bytes()))
    assert trace["collectives"] == sent[rank]
    assert found.memory.ranks[0].points == record.memory.ranks[rank].points
    assert found.memory.ranks[0].peak_allocated_bytes == record.memory.ranks[rank].peak_allocated_bytes


@pytest.mark.parametrize("steps", STEPS)
def test_hpz_holds_a_second_shard_of_each_parameter(real, steps):
    record, _ = real(hpz(steps))
    sizes = tensor_sizes(load_config("llama-tiny"))
    second = 2 * sum(-(-size // 2) for size in sizes)  # bf16, halved in each pair
    assert second == PSI
    for rank in record.memory.ranks:
        held = {point.point: point.bytes.get("secondary_parameters", 0) for point in rank.points}
        # The engine is built with them; they go when the optimizer step ends, and the next forward makes them anew.
        assert held == dict.fromkeys(("init", "forward", "backward", "step", "peak"), second)
        assert next(point for point in rank.points if point.point == "backward").bytes["parameters"] == 2 * PSI // 4


def test_bf16_optimizer_is_what_ran(real):
    record, _ = real({"strategy": "z1-bf16-optimizer"})
    assert (record.status, record.validity) == ("completed", "valid")
    assert [(each.check, each.verdict) for each in record.findings] == [
        ("parity", "note")
    ]  # gradients tensor by tensor
    assert record.effective["optimizer_wrapper"] == "BF16_Optimizer"


@pytest.mark.parametrize("strategy", [pytest.param("z1-multi-rank-off", marks=pytest.mark.slow), "z2-multi-rank-off"])
def test_without_multi_rank_buckets_gradients_go_to_their_owners(real, strategy):
    """The paper's 2 psi: each gradient is reduced to the rank that owns it, and the parameters are gathered."""
    record, sent = real({"strategy": strategy})
    assert (record.status, record.validity, record.findings) == ("completed", "valid", [])
    for events in sent:
        assert moved(events) == {("reduce", "backward", 2): PSI, (GATHER, "step", 2): PSI}
    assert record.practice.comm_bytes_per_step == record.comm.comm_bytes_per_step == 2 * 2 * PSI
