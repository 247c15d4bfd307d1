"""Strategies of a scenario: what they are called, what they set, and which of their cells are one."""

import json
from typing import Any

import pytest

from bench.plan import PlannedCell, Resources, plan
from bench.scenario import Scenario
from bench.strategy import named
from bench.zero.stages import STRATEGIES, VARIANTS, strategy_names

OFFER = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True, deepspeed="0.19.8")
CPU = {"device": "cpu", "pin_memory": True}


def cells(strategy: Any, zero: dict[str, Any] | None = None, **matrix: Any) -> list[PlannedCell]:
    axes = {"model": "llama-tiny", "strategy": strategy, "world_size": 2, "seq_length": 32} | matrix
    return plan(Scenario.model_validate({"matrix": axes, "zero_optimization": zero or {}}), OFFER)


def names(found: list[PlannedCell]) -> list[str]:
    return [entry.cell.strategy_name for entry in found]


def test_the_names_are_those_of_the_stages_each_with_its_variants():
    found = strategy_names()
    assert sorted(found) == sorted([*STRATEGIES, *VARIANTS])
    bases = [VARIANTS[name].strategy if name in VARIANTS else name for name in found]
    assert bases == sorted(bases, key=list(STRATEGIES).index)


@pytest.mark.parametrize(
    ("name", "strategy", "zero", "deepspeed"),
    [
        ("z2", "z2", {}, {}),
        ("z2-offload", "z2", {"offload_optimizer": CPU}, {}),
        ("z3-offload-param", "z3", {"offload_optimizer": CPU, "offload_param": CPU}, {}),
        ("z1-bf16-optimizer", "z1", {}, {"data_types": {"grad_accum_dtype": "fp32"}}),
        ("z2-multi-rank-off", "z2", {"use_multi_rank_bucket_allreduce": False}, {}),
        ("zpp-hpz", "z3", {"zero_hpz_partition_size": 4}, {}),
    ],
)
def test_a_variant_is_a_stage_with_settings_of_its_own(name, strategy, zero, deepspeed):
    assert named(name, {}, frozenset(), ranks_per_node=4).settings == {
        "strategy": strategy,
        "name": None if name == strategy else name,
        "zero_optimization": zero,
        "deepspeed": deepspeed,
    }


def test_a_variants_own_key_is_not_the_scenarios():
    asked = {"use_multi_rank_bucket_allreduce": True, "reduce_bucket_size": 7}
    own = named("z2-multi-rank-off", asked, frozenset(), 8).settings
    assert own["zero_optimization"] == {"reduce_bucket_size": 7, "use_multi_rank_bucket_allreduce": False}
    assert named("zpp-hpz", {"zero_hpz_partition_size": 2}, frozenset(), 8).settings["zero_optimization"] == {
        "zero_hpz_partition_size": 2
    }
    # A stage without second shards has no use for their size.
    assert named("z3", {"zero_hpz_partition_size": 2}, frozenset(), 8).settings["zero_optimization"] == {}


@pytest.mark.parametrize(
    ("key", "value", "label"),
    [
        ("overlap_comm", True, "z2+overlap_comm=true"),
        ("overlap_comm", False, "z2+overlap_comm=false"),
        ("reduce_bucket_size", 500_000_000, "z2+reduce_bucket_size=5e8"),
        ("reduce_bucket_size", 1_000_000, "z2+reduce_bucket_size=1e6"),
        ("reduce_bucket_size", 200_000, "z2+reduce_bucket_size=200000"),
        ("reduce_bucket_size", 123, "z2+reduce_bucket_size=123"),
        ("reduce_bucket_size", 0, "z2+reduce_bucket_size=0"),
    ],
)
def test_a_key_with_several_values_is_part_of_the_name(key, value, label):
    assert named("z2", {key: value}, frozenset({key}), 8).settings["name"] == label
    assert named("z2", {key: value}, frozenset(), 8).settings["name"] is None


def test_several_such_keys_make_their_product_in_the_order_of_the_alphabet():
    found = cells("z2", {"reduce_bucket_size": [1000, 2000], "overlap_comm": [True, False]})
    assert names(found) == [
        "z2+overlap_comm=true+reduce_bucket_size=1000",
        "z2+overlap_comm=false+reduce_bucket_size=1000",
        "z2+overlap_comm=true+reduce_bucket_size=2000",
        "z2+overlap_comm=false+reduce_bucket_size=2000",
    ]
    assert len({entry.cell_id for entry in found}) == 4
    assert found[0].label == f"llama-tiny/{names(found)[0]}/w2/mbs1/gas1/s32/bf16"


def test_cells_that_a_key_does_not_tell_apart_are_one():
    found = cells(["z0", "z2", "z3"], {"stage3_max_live_parameters": [1000, 2000]})
    assert names(found) == [
        "z0", "z2", "z3+stage3_max_live_parameters=1000", "z3+stage3_max_live_parameters=2000",
    ]  # fmt: skip
    own = cells("z2-multi-rank-off", {"use_multi_rank_bucket_allreduce": [True, False]})
    assert names(own) == ["z2-multi-rank-off"]


def test_hpz_has_the_ranks_of_a_node_and_hpz_on_one_is_refused():
    (one,) = cells("zpp-hpz", world_size=4)
    assert one.cell.zero_optimization == {"zero_hpz_partition_size": 4}
    assert one.refused is not None
    assert one.refused[0] == "skipped"
    (two,) = cells("zpp-hpz", world_size=16, mode="emulated")
    assert (two.cell.zero_optimization, two.refused) == ({"zero_hpz_partition_size": 8}, None)


def test_the_id_is_of_the_content_and_the_name_is_the_files(tmp_path):
    content = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": False}}
    found = []
    for name, order in (("one", 1), ("two", -1)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(dict(list(content.items())[::order])))
        found += cells({"config": str(path)})
    assert names(found) == ["one", "two"]
    assert found[0].cell_id == found[1].cell_id
    both = cells([{"config": str(tmp_path / "one.json")}, {"config": str(tmp_path / "two.json")}])
    assert names(both) == ["one"]  # one cell, called by the first
    (changed,) = cells({"config": str(tmp_path / "one.json")}, train_micro_batch_size_per_gpu=2)
    assert changed.cell_id != found[0].cell_id
