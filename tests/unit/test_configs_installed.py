"""What bench.configs says of DeepSpeed, transformers and accelerate, held against the installed packages."""

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from bench.configs import ConfigFile, Context, read_configs, resolve
from bench.configs import keys as tables

pytestmark = pytest.mark.ranks  # DeepSpeed and transformers are imported

ROOT = Path(__file__).parents[2]
FACTORY = sorted((ROOT / "scenarios" / "llama_factory").glob("*.json"))
DATA = ROOT / "tests" / "data" / "configs"
CONTEXT = Context(3584, 4, "bf16", 2, 3, None, lr=2e-5, weight_decay=0.1, gradient_clipping=0.7, deepspeed="0.19.8")
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def arguments(context):
    """The training arguments that transformers resolves a configuration from."""
    return SimpleNamespace(
        world_size=context.world_size,
        per_device_train_batch_size=context.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=context.gradient_accumulation_steps,
        max_grad_norm=context.gradient_clipping,
        learning_rate=context.lr,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=context.weight_decay,
        save_on_each_node=False,
        fp16=context.dtype == "fp16",
        fp16_full_eval=False,
        bf16=context.dtype == "bf16",
        bf16_full_eval=False,
        get_warmup_steps=lambda steps: 0,
    )


def by_transformers(content, context):
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig(content)
    config.trainer_config_process(arguments(context))
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=context.hidden_size))
    config.trainer_config_finalize(arguments(context), model, 100)
    return config.config


def zero_config(section, stage):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return DeepSpeedZeroConfig(**section, stage=stage)


RESOLVED = [
    pytest.param(path, dtype, id=f"{path.stem}-{dtype}")
    for path in (*FACTORY, DATA / "swift_zero1.json", DATA / "axolotl_zero1.json")
    for dtype in ("bf16", "fp16", "fp32")
    if (path.stem, dtype) != ("ds_z3_fp8_config", "fp16")  # impossible, see below
]


@pytest.mark.parametrize("hidden_size", [1600, 3584])
@pytest.mark.parametrize(("path", "dtype"), RESOLVED)
def test_a_file_is_resolved_as_transformers_resolves_it(path, dtype, hidden_size):
    context = replace(CONTEXT, hidden_size=hidden_size, dtype=dtype)
    (config,) = read_configs(path)
    ours, theirs = resolve(config, context), by_transformers(config.content, context)
    assert ours.settings["dtype"] == next((name for name in ("bf16", "fp16") if theirs[name]["enabled"]), "fp32")
    sizes = {key: theirs[key] for key in SIZES if key in theirs}
    assert {key: ours.settings[key] for key in sizes} == sizes
    assert ours.optimizer["gradient_clipping"] == theirs["gradient_clipping"]
    section = {key: value for key, value in theirs["zero_optimization"].items() if key not in tables.ZERO_NO_FIGURE}
    stage = section.pop("stage")
    assert ours.strategy == f"z{stage}"
    expected = zero_config(section, stage)
    if expected.offload_optimizer is not None and expected.offload_optimizer.device == "none":
        expected.offload_optimizer = None
    assert zero_config(ours.zero_optimization, stage) == expected


def test_transformers_refuses_what_is_impossible_here():
    path = next(path for path in FACTORY if "fp8" in path.stem)
    (config,) = read_configs(path)
    context = replace(CONTEXT, dtype="fp16")
    assert resolve(config, context).impossible == "fp16.enabled is false in the file, and fp16 is asked for"
    with pytest.raises(ValueError, match=r"fp16\.enabled=False vs hf fp16"):
        by_transformers(config.content, context)


def test_the_optimizer_of_a_trainer_file_is_resolved_as_transformers_resolves_it():
    (config,) = read_configs(DATA / "trainer_args.json")
    context = replace(
        CONTEXT, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2, gradient_clipping=0.5, lr=3e-5
    )
    ours, theirs = resolve(config, context), by_transformers(config.content, context)
    assert {key: ours.settings[key] for key in SIZES[:2]} == {key: theirs[key] for key in SIZES[:2]}
    assert ours.optimizer["lr"] == theirs["optimizer"]["params"]["lr"]
    assert ours.optimizer["weight_decay"] == theirs["optimizer"]["params"]["weight_decay"]
    assert theirs["zero_optimization"]["stage3_prefetch_bucket_size"] == "auto"  # left open below stage 3
    assert "stage3_prefetch_bucket_size" not in ours.zero_optimization


def test_the_keys_of_zero_optimization_are_those_of_the_release():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    known = set(fields) | {field.alias for field in fields.values() if field.alias}
    older = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param", "cpu_offload_params"}
    assert known == tables.ZERO_KEYS - older
    aliases = {name: field.alias for name, field in fields.items() if field.alias}
    fp16 = "stage3_gather_fp16_weights_on_model_save"
    assert {key: value for key, value in tables.ZERO_ALIASES.items() if key != fp16} == aliases
    assert fields[fp16].json_schema_extra["new_param"] == tables.ZERO_ALIASES[fp16].removeprefix("stage3_")
    for old, new in tables.ZERO_CPU_OFFLOAD.items():
        if old in fields:
            assert fields[old].json_schema_extra["new_param"] == new
    assert fields[tables.ZERO_PINNED].json_schema_extra["set_new_param"] is False


def test_kinds_and_lowest_values_are_those_of_the_release():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = {field.alias or name: field for name, field in DeepSpeedZeroConfig.model_fields.items()}
    for key, lowest in tables.ZERO_WHOLE.items():
        if key in fields:
            assert fields[key].annotation is int, key
            bounds = [getattr(item, "ge", getattr(item, "gt", -1) + 1) for item in fields[key].metadata]
            assert bounds in ([lowest], []), key
    for key in tables.ZERO_SWITCHES & fields.keys():
        assert "bool" in str(fields[key].annotation), key


@pytest.mark.parametrize("part", ["offload_optimizer", "offload_param"])
def test_the_keys_of_offload_are_those_of_the_release(part):
    from deepspeed.runtime.zero import offload_config

    model = {
        "offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }[part]
    ours = tables.OFFLOAD_WHOLE[part] | tables.OFFLOAD_SWITCHES[part] | tables.OFFLOAD_FRACTIONS[part]
    assert ours | {"device", "nvme_path"} == set(model.model_fields)
    assert [device.value for device in offload_config.OffloadDeviceEnum] == list(tables.OFFLOAD_DEVICES)


def test_the_keys_of_precision_are_those_of_the_release():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config

    from bench.configs.precision import _DEFAULTS

    for name, model, ours in (
        ("fp16", DeepSpeedFP16Config, tables.FP16_KEYS),
        ("bf16", DeepSpeedBF16Config, tables.BF16_KEYS),
    ):
        assert set(model.model_fields) == ours
        assert {key: model.model_fields[key].default for key in ours - {"enabled"}} == _DEFAULTS[name]


def test_every_top_level_key_that_the_release_reads_is_known():
    """By what deepspeed/runtime/config.py asks of the mapping: string literals, and constants of its modules."""
    import deepspeed.runtime.config as module

    source = Path(module.__file__).read_text()
    names = re.findall(r"(?:param_dict\.get\(|param_dict\[|get_scalar_param\(param_dict,\s*)\"?'?([\w]+)", source)
    read = {getattr(module, name, name) for name in names if name.isupper() or name.islower()}
    read -= {"comm_type", "config_file", "filename"}
    monitors = {"tensorboard", "wandb", "csv_monitor", "comet"}
    missing = {key for key in read | monitors if isinstance(key, str)} - tables.TOP_LEVEL
    assert missing == set()
    assert module._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys() == tables.REMOVED
    assert module._REMOVED_ZERO_CONFIG_KEYS.keys() <= tables.ZERO_KEYS


def test_each_alias_and_old_spelling_means_what_deepspeed_reads():
    given = {
        "prefetch_bucket_size": 1,
        "param_persistence_threshold": 2,
        "max_live_parameters": 3,
        "max_reuse_distance": 4,
        "model_persistence_threshold": 5,
        "module_granularity_threshold": 6,
        "use_all_reduce_for_fetch_params": True,
        "allgather_sequential": True,
        "cpu_offload": True,
        "cpu_offload_param": True,
        "cpu_offload_use_pin_memory": False,
    }
    content = {"zero_optimization": {"stage": 3} | given}
    ours = resolve(ConfigFile("c", "c.json", content, {}, ()), CONTEXT).zero_optimization
    expected = zero_config(given, 3)
    found = zero_config(ours, 3)
    old = {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"}
    assert found.model_dump(exclude=old) == expected.model_dump(exclude=old)


def test_the_deprecated_switch_means_what_deepspeed_reads():
    from deepspeed.runtime.zero.config import get_zero_config

    for given in ({"zero_optimization": True, "allgather_size": 7}, {"zero_optimization": False}):
        ours = resolve(ConfigFile("c", "c.json", given, {}, ()), CONTEXT)
        assert zero_config(ours.zero_optimization, int(ours.strategy[1])) == get_zero_config(given)


def test_accelerate_makes_the_same_configuration_of_its_file(monkeypatch):
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import DeepSpeedPlugin

    path = DATA / "accelerate_stage.yaml"
    section = ClusterConfig.from_yaml_file(str(path)).deepspeed_config
    for name in list(os.environ):
        if name.startswith("ACCELERATE_"):
            monkeypatch.delenv(name)
    plugin = DeepSpeedPlugin(**{key: value for key, value in section.items() if key != "zero3_init_flag"})
    plugin.set_mixed_precision("bf16")
    (config,) = read_configs(path)
    ours = resolve(config, CONTEXT)
    theirs = plugin.deepspeed_config
    assert ours.settings["dtype"] == "bf16"
    assert theirs["bf16"]["enabled"] is True
    assert theirs["gradient_accumulation_steps"] == ours.settings["gradient_accumulation_steps"] == 4
    assert theirs["gradient_clipping"] == ours.optimizer["gradient_clipping"] == 0.5
    zero = theirs["zero_optimization"]
    assert ours.strategy == f"z{zero['stage']}"
    assert zero["offload_optimizer"]["device"] == ours.zero_optimization["offload_optimizer"]["device"] == "cpu"
    assert zero["offload_param"]["device"] == "none"
    assert "offload_param" not in ours.zero_optimization


def test_accelerate_refuses_the_same_keys_beside_a_file(monkeypatch):
    from accelerate.utils import DeepSpeedPlugin

    from bench.configs.accelerate import _NOT_WITH_FILE

    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "zero_stage")
    with pytest.raises(ValueError, match="will be ignored") as error:
        DeepSpeedPlugin(hf_ds_config=str(DATA / "swift_zero1.json"))
    refused = re.search(r"ignored: \[(.*?)\]", str(error.value))[1]
    assert set(re.findall(r"\w+", refused)) == {*_NOT_WITH_FILE, "mixed_precision"}


def test_the_keys_of_accelerates_file_are_those_of_the_release():
    from dataclasses import fields

    from accelerate.commands.config.config_args import ClusterConfig

    from bench.configs.accelerate import _TOP

    assert {field.name for field in fields(ClusterConfig)} | {"fp16", "dynamo_backend"} == set(_TOP)


def test_deepspeed_refuses_keys_of_fp16_in_bf16():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config

    for key in tables.FP16_KEYS - tables.BF16_KEYS:
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            DeepSpeedBF16Config(**{key: 0})


ODD = yaml.safe_load((ROOT / "tests" / "data" / "odd_configs.yaml").read_text(encoding="utf-8"))
POSSIBLE = [case for case in ODD if "error" not in case and "impossible" not in case and case["case"] != "MiCS"]


@pytest.mark.parametrize("case", POSSIBLE, ids=[case["case"] for case in POSSIBLE])
def test_deepspeed_takes_what_odd_configurations_become(case, tmp_path):
    from deepspeed.runtime.config import DeepSpeedConfig

    path = tmp_path / case["file"]
    path.write_text(case["text"], encoding="utf-8")
    for config in read_configs(path):
        found = resolve(config, replace(CONTEXT, world_size=8, dtype=None, train_micro_batch_size_per_gpu=None))
        stage, dtype = int(found.strategy[1]), found.settings["dtype"]
        whole = {
            "train_micro_batch_size_per_gpu": found.settings["train_micro_batch_size_per_gpu"],
            "gradient_accumulation_steps": found.settings["gradient_accumulation_steps"],
            "gradient_clipping": found.optimizer["gradient_clipping"],
            "fp16": {"enabled": dtype == "fp16"},
            "bf16": {"enabled": dtype == "bf16"},
            "zero_optimization": found.zero_optimization | {"stage": stage},
        } | found.deepspeed
        taken = DeepSpeedConfig(whole)
        assert taken.zero_optimization_stage == stage
        assert taken.float16_config.enabled == (dtype == "fp16")
        assert taken.bfloat16_config.enabled == (dtype == "bf16")
        dumped = taken.zero_config.model_dump(by_alias=True)
        for key, value in found.zero_optimization.items():
            if not isinstance(value, dict):
                assert dumped[key] == value, key
