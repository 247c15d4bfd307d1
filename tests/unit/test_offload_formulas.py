"""What offload keeps and moves, against numbers worked out by hand for llama-tiny (psi = 315,968)."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cell import Cell
from bench.models.catalog import load_config
from bench.models.counts import count_params
from bench.models.modules import tensor_sizes
from bench.zero.offload import device_peak_bytes, expected, host_peak_bytes, offload
from bench.zero.stages import VARIANTS

PSI, LARGEST, NORMS = 315_968, 65_536, 9 * 64
HALF = PSI // 2
SMALL = {
    "reduce_bucket_size": 50_000,
    "stage3_param_persistence_threshold": 1_000,
    "stage3_max_live_parameters": 50_000,
}
CONFIG = load_config("llama-tiny")
PARAMS = count_params(CONFIG)
NAMES = ("device_steady_bytes", "host_steady_bytes", "pinned_bytes", "host_to_device_bytes", "device_to_host_bytes")


def cell(name: str, *, zero: dict[str, Any] | None = None, **settings: Any) -> Cell:
    variant = VARIANTS[name]
    shape: dict[str, Any] = {"world_size": 2, "seq_length": 64, "train_micro_batch_size_per_gpu": 2}
    return Cell(
        model="llama-tiny",
        strategy=variant.strategy,
        zero_optimization=SMALL | variant.zero_optimization | (zero or {}),
        **shape | settings,
    )


def found(name: str, rank: int = 0, *, apart: bool = True, **settings: Any) -> tuple[int | None, ...]:
    assert PARAMS is not None
    sizes = offload(cell(name, **settings), CONFIG, PARAMS, rank, apart=apart)
    return tuple(sizes.get(key) for key in NAMES)


def test_stage_2_keeps_the_states_and_one_buffer_each_for_its_largest_tensor():
    device, buffers = 2 * PSI + 2 * LARGEST, 6 * HALF + 2 * LARGEST
    # All but Adam's moments is pinned.
    assert found("z2-offload") == (device, 12 * HALF + buffers, 4 * HALF + buffers, 2 * HALF, 4 * HALF)
    assert found("z1-offload") == found("z2-offload") == found("z2-offload", apart=False)


def test_stage_2_accumulates_on_the_host_and_stage_1_on_the_device():
    """Rank 0's half touches tensors of 162,048 elements (tests/unit/test_memory_theory.py)."""
    once, twice = found("z2-offload"), found("z2-offload", gradient_accumulation_steps=2)
    touching = 2 * 162_048
    assert [b - a for a, b in zip(once, twice, strict=True)] == [0, touching, touching, touching, 2 * touching]
    assert found("z1-offload", gradient_accumulation_steps=2) == once
    other = 2 * (PSI - 157_952)
    assert found("z2-offload", 1, gradient_accumulation_steps=3)[3] == 2 * HALF + 2 * other


def test_the_last_rank_moves_no_padding_to_the_host():
    """7 ranks: padded to 14 x 22,570; the last partition begins at 270,840 and ends 12 elements past the end."""
    shard, own = 45_140, PSI - 270_840
    assert found("z2-offload", 6, world_size=7)[3:] == (2 * shard, 4 * own)
    assert found("z2-offload", 0, world_size=7)[3:] == (2 * shard, 4 * shard)


def test_pageable_memory_is_not_pinned():
    section = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
    assert found("z2-offload", zero=section) == (*found("z2-offload")[:2], 0, *found("z2-offload")[3:])
    assert found("z3-offload", zero=section)[2] == 0


def test_fp32_has_the_width_of_four_bytes():
    assert found("z2-offload", dtype="fp32") == (
        4 * (PSI + LARGEST), 20 * HALF + 4 * LARGEST, 12 * HALF + 4 * LARGEST, 4 * HALF, 4 * HALF,
    )  # fmt: skip


def test_stage_3_moves_gradients_over_and_back_before_they_go_as_fp32():
    on_device = 2 * HALF + 2 * 50_000 + 2 * NORMS
    assert found("z3-offload") == (on_device, 18 * HALF, 6 * HALF, 4 * HALF, 6 * HALF)
    assert found("z3-offload", gradient_accumulation_steps=2)[3:] == (6 * HALF, 8 * HALF)
    # Where both are one memory, the second micro-step adds in place: no figure.
    assert found("z3-offload", apart=False, gradient_accumulation_steps=2)[3:] == (None, None)
    assert found("z3-offload", apart=False) == found("z3-offload")


def test_stage_3_pads_every_tensor_and_moves_no_padding():
    sizes = tensor_sizes(CONFIG)
    assert sizes is not None
    parts = [-(-size // 7) for size in sizes]
    own = sum(max(0, min(part, size - 6 * part)) for part, size in zip(parts, sizes, strict=True))
    assert own < sum(parts)
    assert found("z3-offload", 6, world_size=7)[3:] == (2 * own + 2 * sum(parts), 6 * own)


def test_offloaded_parameters_come_over_whenever_they_are_gathered():
    device, host, pinned, over, back = found("z3-offload-param", zero={"stage3_max_reuse_distance": 0})
    assert (device, host, pinned, back) == (2 * 50_000 + 2 * NORMS, 20 * HALF, 8 * HALF, 6 * HALF)
    # Forward and backward gather all that is sharded; some is still live when backward begins.
    assert over is not None
    assert 2 * HALF + 2 * (HALF - NORMS // 2) < over <= 2 * HALF + 4 * HALF
    single = found("z3-offload-param", world_size=1)
    assert single == (None, 20 * PSI, 8 * PSI, None, None)


def test_parameters_alone_go_to_the_host_as_the_fp32_that_they_are():
    alone = Cell(
        model="llama-tiny", strategy="z3", world_size=2, zero_optimization=SMALL | {"offload_param": {"device": "cpu"}}
    )
    assert PARAMS is not None
    sizes = offload(alone, CONFIG, PARAMS, 0, apart=True)
    assert sizes["device_steady_bytes"] == 14 * HALF + 2 * 50_000 + 2 * NORMS
    assert (sizes["host_steady_bytes"], sizes["pinned_bytes"], sizes["device_to_host_bytes"]) == (
        2 * HALF,
        2 * HALF,
        4 * HALF,
    )


def test_nothing_is_said_of_what_offloads_nothing_and_of_what_is_not_known():
    assert PARAMS is not None
    assert offload(Cell(model="llama-tiny", strategy="z2", world_size=2), CONFIG, PARAMS, 0, apart=True) == {}
    mixtral = load_config("mixtral-tiny")
    params = count_params(mixtral)
    assert params is not None
    assert offload(cell("z2-offload"), mixtral | {"model_type": "unheard-of"}, params, 0, apart=True) == {}


def test_what_is_expected_of_the_device_leaves_the_hosts_part_out():
    assert PARAMS is not None
    one = expected(cell("z2-offload"), CONFIG, PARAMS, "backward", apart=False)
    two = expected(cell("z2-offload"), CONFIG, PARAMS, "backward", apart=True)
    assert one["optimizer_states"] == 12 * HALF + 4  # and Adam's step counter
    assert two["optimizer_states"] == 0
    assert one["offload_buffers"] - two["offload_buffers"] == 6 * HALF + 2 * LARGEST
    assert two["parameters"] == one["parameters"] == 2 * PSI
    param = expected(cell("z3-offload-param"), CONFIG, PARAMS, "backward", apart=True)
    assert (param["parameters"], param["gradients"], param["optimizer_states"]) == (0, 0, 0)
    plain = Cell(model="llama-tiny", strategy="z2", world_size=2)
    assert expected(plain, CONFIG, PARAMS, "backward", apart=True) == expected(
        plain, CONFIG, PARAMS, "backward", apart=False
    )


def test_the_peaks_of_host_and_device():
    """The host's is the update: states, gradients and 8 B of temporaries per element, over one step counter."""
    assert PARAMS is not None
    asked = cell("z2-offload")
    assert host_peak_bytes(asked, CONFIG, PARAMS) == (12 + 6 + 8) * HALF + 2 * LARGEST + 4
    peak = device_peak_bytes(asked, CONFIG, PARAMS)
    assert peak == pytest.approx(3_861_168, abs=2_100)  # as measured, but for the batch of tokens
    plain = Cell(model="llama-tiny", strategy="z2", world_size=2)
    assert host_peak_bytes(plain, CONFIG, PARAMS) == 0


def test_a_section_that_says_nothing_of_it_is_pinned(tmp_path: Path):
    """As DeepSpeed 0.19.8 has it (runtime/zero/offload_config.py)."""
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

    from bench.plan import Resources, plan
    from bench.scenario import Scenario

    path = tmp_path / "plain.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}))
    matrix = {"model": "llama-tiny", "strategy": {"config": str(path)}, "world_size": 2}
    offer = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True, deepspeed="0.19.8")
    (entry,) = plan(Scenario.model_validate({"matrix": matrix}), offer)
    assert entry.params is not None
    pinned = offload(entry.cell, entry.config, entry.params, 0, apart=True)["pinned_bytes"]
    assert pinned == 12 * HALF + 4 * LARGEST  # fp32, for the file names no precision
    assert DeepSpeedZeroOffloadOptimizerConfig(device="cpu").pin_memory
