"""Volumes against formulas that can be checked by hand; psi is the number of parameters."""

from typing import Any

import pytest

from bench.cell import Cell
from bench.models.catalog import load_config
from bench.zero.explain import sentences
from bench.zero.practice import holds_for, practice
from bench.zero.theory import volumes, wire_bytes_per_step

PSI = 315_968  # llama-tiny
GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
# Odd sizes, so that every rule of padding shows.
ODD = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 9,
    "intermediate_size": 11,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
}
ODD_SIZES = [909, 81, 81, 81, 81, 99, 99, 99, 9, 9, 9, 909]


def moved(strategy: str, config: dict[str, Any] | None = None, **settings: Any) -> dict[tuple[str, str], int]:
    """Elements by phase and operation."""
    cell = Cell(**({"model": "llama-tiny", "strategy": strategy, "world_size": 4} | settings))
    found = practice(cell, config or load_config(cell.model), "nccl")
    assert found is not None
    width = 4 if cell.dtype == "fp32" else 2
    assert found.comm_bytes_per_step == sum(volume.num_bytes for volume in found.volumes)
    assert {volume.dtype for volume in found.volumes} == {{2: "bfloat16", 4: "float32"}[width]}
    return {(volume.phase, volume.op): volume.num_bytes // width for volume in found.volumes}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("gas", [1, 3])
@pytest.mark.parametrize("strategy", ["ddp", "z0"])
def test_data_parallelism_all_reduces_psi_once(strategy: str, gas: int, dtype: str) -> None:
    found = moved(strategy, gradient_accumulation_steps=gas, dtype=dtype)
    assert found == {("backward", "all_reduce"): PSI}


def test_stage_1_all_reduces_once_and_stage_2_at_every_micro_step() -> None:
    assert moved("z1", gradient_accumulation_steps=4) == {("backward", "all_reduce"): PSI, ("step", GATHER): PSI}
    assert moved("z2", gradient_accumulation_steps=4) == {("backward", "all_reduce"): 4 * PSI, ("step", GATHER): PSI}


@pytest.mark.parametrize("strategy", ["z1", "z2"])
def test_stages_1_and_2_send_3_psi_where_the_paper_sends_2(strategy: str) -> None:
    found = practice(Cell(model="llama-tiny", strategy=strategy, world_size=4), load_config("llama-tiny"), "nccl")
    assert found is not None
    assert found.comm_wire_bytes_per_step == 3 * PSI * 2 * 3 / 4
    assert wire_bytes_per_step(PSI, strategy, 4, "bf16") == 2 * PSI * 2 * 3 / 4


@pytest.mark.parametrize(
    ("settings", "op"),
    [
        ({"use_multi_rank_bucket_allreduce": False}, "reduce"),
        ({"use_multi_rank_bucket_allreduce": False, "reduce_scatter": False}, "all_reduce"),
        ({"use_multi_rank_bucket_allreduce": False, "contiguous_gradients": False}, "all_reduce"),
        ({"reduce_scatter": False}, "all_reduce"),
        ({"reduce_bucket_size": 1000, "overlap_comm": True}, "all_reduce"),
    ],
)
def test_only_without_multi_rank_buckets_are_gradients_reduced_to_their_owners(
    settings: dict[str, Any], op: str
) -> None:
    assert moved("z2", zero_optimization=settings) == {("backward", op): PSI, ("step", GATHER): PSI}


def test_stages_1_and_2_pad_the_flat_parameters_to_twice_the_ranks() -> None:
    assert sum(ODD_SIZES) == 2466
    assert moved("z1", ODD) == {("backward", "all_reduce"): 2466, ("step", GATHER): 2472}
    assert moved("z1", ODD, world_size=1) == {("backward", "all_reduce"): 2466}


def test_stage_3_pads_every_parameter_to_the_ranks() -> None:
    padded = sum(-(-size // 4) * 4 for size in ODD_SIZES)
    found = moved("z3", ODD, zero_optimization={"stage3_param_persistence_threshold": 0})
    assert found == {("forward", GATHER): padded, ("backward", SCATTER): padded}


def test_stage_3_below_its_limits_gathers_once_per_micro_step() -> None:
    settings = {"stage3_param_persistence_threshold": 0}
    for checkpointing in (False, True):
        found = moved(
            "z3",
            zero_optimization=settings,
            gradient_accumulation_steps=2,
            activation_checkpointing=checkpointing,
        )
        assert found == {("forward", GATHER): 2 * PSI, ("backward", SCATTER): 2 * PSI}


def test_stage_3_that_keeps_nothing_moves_what_the_paper_says() -> None:
    settings = {
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_reuse_distance": 0,
    }
    found = moved("z3", zero_optimization=settings)
    assert found == {key: size // 2 for key, size in volumes(PSI, "z3", "bf16").items()}
    # Without an early stop the recomputation would gather all of a block again; it stops at the last layer's fetch.
    block = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 176 + 2 * 64
    again = moved("z3", zero_optimization=settings, activation_checkpointing=True)
    assert again[("backward", GATHER)] == PSI + 4 * (block - 64 * 176)


def test_a_tied_embedding_is_gathered_at_both_uses() -> None:
    settings = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    found = moved("z3", model="llama-tiny-tied", zero_optimization=settings | {"stage3_max_reuse_distance": 0})
    # In forward both uses gather it; in backward lm_head's, then the embedding's.
    assert found[("forward", GATHER)] == found[("backward", GATHER)] == PSI
    assert found[("backward", SCATTER)] == PSI - 65_536


def test_stage_3_without_reduce_scatter_all_reduces_what_fits_a_bucket() -> None:
    settings = {"reduce_scatter": False, "reduce_bucket_size": 20_000, "stage3_param_persistence_threshold": 0}
    found = moved("z3", zero_optimization=settings)
    assert found[("backward", SCATTER)] == 2 * 65_536
    assert found[("backward", "all_reduce")] == PSI - 2 * 65_536
    scattered = moved("z3", zero_optimization=settings | {"contiguous_gradients": False})
    assert ("backward", "all_reduce") not in scattered
    assert scattered[("backward", SCATTER)] == PSI


def test_what_a_default_stage_3_keeps_of_a_large_model_is_about_its_limit() -> None:
    """With 1e9 live parameters, forward and backward gather about 2 psi - 1e9 (llama-2-7b)."""
    cell = Cell(model="llama-2-7b", strategy="z3", world_size=8)
    found = practice(cell, load_config("llama-2-7b"), "nccl")
    assert found is not None
    psi = 6_738_415_616
    gathered = sum(v.num_bytes for v in found.volumes if v.op == GATHER and v.phase != "step") / 2
    assert gathered == pytest.approx(2 * psi - 1e9, rel=0.03)


@pytest.mark.parametrize(
    "cell",
    [
        Cell(model="x", strategy="z3", zero_optimization={"stage3_module_granularity_threshold": 10}),
        # Cut every 10 elements, some gradients leave pieces as small as control collectives.
        Cell(model="x", strategy="z1", world_size=300, zero_optimization={"use_multi_rank_bucket_allreduce": False}),
    ],
)
def test_what_cannot_be_exact_has_no_prediction(cell: Cell) -> None:
    assert practice(cell, ODD, "gloo") is None


def test_an_unknown_family_has_no_prediction() -> None:
    assert practice(Cell(model="x", strategy="z1"), {"model_type": "falcon"}, "gloo") is None


def test_rules_hold_for_the_release_they_were_read_from() -> None:
    stack = {"deepspeed": "0.19.8", "transformers": "5.24.0"}
    assert all(holds_for(stack, strategy) for strategy in ("ddp", "z0", "z1", "z2", "z3"))
    assert not holds_for(stack | {"deepspeed": "0.18.0"}, "z2")
    assert holds_for(stack | {"deepspeed": "0.18.0"}, "ddp")
    assert not holds_for(stack | {"transformers": "4.57.1"}, "z3")
    assert not holds_for(stack | {"transformers": "5.3.0"}, "z3")
    assert holds_for(stack | {"transformers": "4.57.1"}, "z2")
    assert not holds_for({}, "z0")
    assert holds_for({"torch": "2.13.0+cpu"}, "fsdp2")
    assert not holds_for(stack | {"torch": "2.6.0"}, "fsdp2")


@pytest.mark.parametrize("gas", [1, 3])
def test_fsdp2_gathers_blocks_twice_the_rest_once_and_reduces_all_at_every_micro_step(gas: int) -> None:
    block, rest = 46_208, 131_136  # llama-tiny has 4 blocks; beside them embedding, head and last norm
    assert moved("fsdp2", gradient_accumulation_steps=gas) == {
        ("forward", GATHER): PSI * gas,
        ("backward", GATHER): 4 * block * gas,
        ("backward", SCATTER): PSI * gas,
    }
    assert 4 * block + rest == PSI


def test_fsdp2_pads_the_rows_of_every_parameter_to_a_multiple_of_the_ranks() -> None:
    block = 4 * 12 * 9 + 2 * 12 * 9 + 12 * 11 + 2 * 12  # attention; gate and up, 11 x 9; down, 9 x 11; norms
    rest = 2 * 104 * 9 + 12
    assert moved("fsdp2", ODD) == {
        ("forward", GATHER): block + rest,
        ("backward", GATHER): block,
        ("backward", SCATTER): block + rest,
    }


def test_fsdp2_on_one_rank_sends_nothing() -> None:
    found = practice(Cell(model="llama-tiny", strategy="fsdp2"), load_config("llama-tiny"), "gloo")
    assert found is not None
    assert (found.volumes, found.comm_bytes_per_step) == ([], 0)


def test_sentences_say_why_fsdp2_differs_from_the_paper() -> None:
    cell = Cell(model="llama-tiny", strategy="fsdp2", world_size=4, gradient_accumulation_steps=2)
    found = practice(cell, ODD, "gloo")
    assert found is not None
    gathers, steps, padding, gloo = sentences(cell, found, sum(ODD_SIZES), "gloo", ODD)
    assert "stays between the two" in gathers
    assert "gathers and reduces 2 times per optimizer step" in steps
    assert f"{2 * 2 * (804 + 1884 - sum(ODD_SIZES)):,} bytes more" in padding
    assert "gloo has no true reduce-scatter" in gloo


def test_gathering_one_by_one_prefetches_one_parameter_whatever_bucket_is_asked_for() -> None:
    def total(**settings: Any) -> int:
        zero = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0} | settings
        return 2 * sum(moved("z3", world_size=2, zero_optimization=zero).values())

    asked = {"stage3_prefetch_bucket_size": 100_000}
    # 1,604,608 bytes: as measured on two ranks (gloo, DeepSpeed 0.19.8).
    assert total(stage3_allgather_sequential=True, **asked) == total(stage3_prefetch_bucket_size=1) == 1_604_608
    assert total(**asked) == 1_394_944
