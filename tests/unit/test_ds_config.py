import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cell import Cell
from bench.scenario import Optimizer
from bench.zero.defaults import SIZES, SWITCHES
from bench.zero.ds_config import ds_config
from bench.zero.stages import STRATEGIES, ZERO_KEYS_ANY_STAGE, ZERO_KEYS_STAGE_3, zero_keys

ROOT = Path(__file__).parents[2]

# Keys of the installed release that a scenario may not set yet. A key that is new in a release is in neither
# list, and fails test_every_key_of_the_release_is_known: decide where it belongs.
NOT_ACCEPTED = {
    "stage",  # the strategy's
    # offload
    "offload_param",
    "offload_optimizer",
    "zenflow",
    "pipeline_loading_checkpoint",
    "save_muon_momentum_buffer_in_memory",
    # ZeRO++
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
    # checkpoints
    "elastic_checkpoint",
    "load_from_fp32_weights",
    "stage3_gather_16bit_weights_on_model_save",
    # others
    "compute_grad_norm",
    "enable_sanity_checks",
    "leaf_module",
    "legacy_stage1",
    "log_trace_cache_warnings",
    "memory_efficient_linear",
    "override_module_apply",
    "parameter_alignment",
}


def cell(strategy: str, **settings: Any) -> Cell:
    return Cell(model="llama-tiny", strategy=strategy, **settings)


@pytest.fixture(scope="module")
def zero_fields() -> dict[str, Any]:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return DeepSpeedZeroConfig.model_fields


@pytest.mark.parametrize(("strategy", "stage"), [("z0", 0), ("z1", 1), ("z2", 2), ("z3", 3)])
def test_config_of_each_stage(strategy: str, stage: int) -> None:
    asked = cell(
        strategy,
        world_size=2,
        train_micro_batch_size_per_gpu=3,
        gradient_accumulation_steps=4,
        optimizer=Optimizer(gradient_clipping=0.5),
        zero_optimization={"reduce_bucket_size": 400_000, "overlap_comm": False},
    )
    warnings = {"log_trace_cache_warnings": True} if stage == 3 else {}
    assert ds_config(asked) == {
        "train_batch_size": 24,
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 400_000, "overlap_comm": False} | warnings,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2147483647,
        "wall_clock_breakdown": False,
    }


@pytest.mark.parametrize(("dtype", "enabled"), [("fp32", []), ("bf16", ["bf16"]), ("fp16", ["fp16"])])
def test_precision(dtype: str, enabled: list[str]) -> None:
    config = ds_config(cell("z1", dtype=dtype))
    assert [key for key in ("bf16", "fp16") if config[key]["enabled"]] == enabled


def test_ddp_has_no_config() -> None:
    with pytest.raises(ValueError, match="ddp does not run under DeepSpeed"):
        ds_config(cell("ddp"))


def test_zero_keys_of_each_strategy() -> None:
    every_stage, stage_3 = ZERO_KEYS_ANY_STAGE, ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3
    expected = {"ddp": set(), "fsdp2": set(), "z0": set(), "z1": every_stage, "z2": every_stage, "z3": stage_3}
    assert {strategy: zero_keys(strategy) for strategy in STRATEGIES} == expected


def test_every_key_of_the_release_is_known(zero_fields: dict[str, Any]) -> None:
    spelled = {
        field.alias or name
        for name, field in zero_fields.items()
        if not (field.json_schema_extra or {}).get("deprecated")
    }
    assert spelled == ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3 | NOT_ACCEPTED
    assert not (ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3) & NOT_ACCEPTED


def test_defaults_are_those_of_the_release(zero_fields: dict[str, Any]) -> None:
    defaults = {field.alias or name: field.default for name, field in zero_fields.items()}
    for table in (SIZES, SWITCHES):
        assert {key: defaults[key] for key in table} == table
    assert all(type(defaults[key]) is bool for key in SWITCHES)


def test_deepspeed_reads_every_accepted_key(zero_fields: dict[str, Any]) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    accepted = ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3
    flags = {
        field.alias or name for name, field in zero_fields.items() if field.annotation is bool or name == "overlap_comm"
    }
    asked = {key: True if key in flags else 7 for key in accepted}
    section = ds_config(cell("z3", zero_optimization=asked))["zero_optimization"]
    read = DeepSpeedZeroConfig(**section).model_dump(by_alias=True)
    assert {key: read[key] for key in section} == {"stage": 3, "log_trace_cache_warnings": True, **asked}


@pytest.mark.parametrize(("strategy", "dtype"), [("z0", "fp32"), ("z1", "bf16"), ("z2", "fp16"), ("z3", "bf16")])
def test_deepspeed_accepts_the_config(strategy: str, dtype: str) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    asked = cell(strategy, dtype=dtype, train_micro_batch_size_per_gpu=3, gradient_accumulation_steps=4)
    read = DeepSpeedConfig(ds_config(asked))
    assert (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (12, 3, 4)
    assert read.zero_optimization_stage == STRATEGIES[strategy].zero_stage
    assert (read.bfloat16_config.enabled, read.float16_config.enabled) == (dtype == "bf16", dtype == "fp16")
    assert (read.gradient_clipping, read.zero_allow_untested_optimizer) == (1.0, True)


def test_import_is_light() -> None:
    check = "import sys, bench.zero.ds_config; assert not {'torch', 'deepspeed'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)
