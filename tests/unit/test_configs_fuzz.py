"""Whatever stands in a configuration, what comes out is a resolved one or a ScenarioError."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.configs import ConfigFile, Context, read_configs, resolve
from bench.configs.keys import BF16_KEYS, FP16_KEYS, OFFLOAD_SWITCHES, OFFLOAD_WHOLE, TOP_LEVEL, ZERO_KEYS
from bench.errors import ScenarioError

FACTORY = Path(__file__).parents[2] / "scenarios" / "llama_factory"
SHIPPED = [json.loads(path.read_text()) for path in sorted(FACTORY.glob("*.json"))]
MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

PARTS = sorted(
    {"device", "nvme_path", "type", "params", "lr", "betas", "eps", "weight_decay", "grad_accum_dtype", "autotp_size"}
    | FP16_KEYS
    | BF16_KEYS
    | OFFLOAD_SWITCHES["offload_optimizer"]
    | OFFLOAD_WHOLE["offload_param"]
)
AROUND = [
    "adapter",
    "base_model",
    "bf16",
    "compute_environment",
    "cutoff_len",
    "deepspeed",
    "deepspeed_config",
    "deepspeed_config_file",
    "disable_gradient_checkpointing",
    "distributed_type",
    "finetuning_type",
    "fp16",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "learning_rate",
    "max_grad_norm",
    "micro_batch_size",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "offload_optimizer_device",
    "offload_param_device",
    "per_device_train_batch_size",
    "sequence_parallel_degree",
    "use_reentrant",
    "zero3_init_flag",
    "zero_stage",
]
WORDS = [
    "auto",
    "true",
    "none",
    "cpu",
    "nvme",
    "5e8",
    "-1",
    "1e999",
    "DEEPSPEED",
    "AdamW",
    "bf16",
    "no",
    "all",
    "",
    "\0",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3, 4, -1, 5e8, 1e9, 0.9, 2**63, 10**400, 1e308, float("inf"), float("nan"), -0.0]),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
NAMES = st.one_of(st.sampled_from(sorted(TOP_LEVEL | ZERO_KEYS) + PARTS + AROUND), st.text(max_size=5))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
SECTION = st.dictionaries(st.sampled_from(sorted(ZERO_KEYS)), VALUES, max_size=6)
CONFIGS = st.builds(
    lambda top, zero: top | {"zero_optimization": zero},
    st.dictionaries(st.one_of(st.sampled_from(sorted(TOP_LEVEL)), NAMES), VALUES, max_size=5),
    st.one_of(SECTION, VALUES),
)
CONTEXTS = st.builds(
    Context,
    hidden_size=st.sampled_from([None, 1, 4096]),
    world_size=st.integers(1, 64),
    dtype=st.sampled_from([None, "bf16", "fp16", "fp32"]),
    train_micro_batch_size_per_gpu=st.sampled_from([None, 1, 3]),
    gradient_accumulation_steps=st.sampled_from([None, 2]),
    train_batch_size=st.sampled_from([None, 1, 64]),
    lr=st.just(1e-3),
    weight_decay=st.just(0.01),
    gradient_clipping=st.just(1.0),
    deepspeed=st.sampled_from(["0.19.8", "0.16.4", "0.18.4+cpu", "unknown"]),
)


def attempt(call, *arguments):
    """Return what it returns and, where that is nothing, the message of its ScenarioError."""
    try:
        return call(*arguments), ""
    except ScenarioError as error:
        return None, str(error)


def outcome(config, context):
    """Resolve; what is returned must be explicit, and what DeepSpeed and a record can hold."""
    found, error = attempt(resolve, config, context)
    if found is None:
        assert error.startswith(f"{config.source}: ")
        return
    assert found.strategy in ("z0", "z1", "z2", "z3")
    assert "stage" not in found.zero_optimization
    assert "auto" not in json.dumps(found.zero_optimization, allow_nan=False).replace("leaf_module", "")
    json.dumps([found.deepspeed, found.settings, found.optimizer], allow_nan=False)
    assert found.settings.keys() >= {"dtype", "train_batch_size"}
    total, micro, steps = (
        found.settings[key]
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    assert found.impossible or total == micro * steps * context.world_size
    assert all(isinstance(note, str) and note for note in found.notes)


@MANY
@given(CONFIGS, CONTEXTS)
def test_any_configuration(content, context):
    before = copy.deepcopy(content)
    outcome(ConfigFile("c", "c.json", content, {}, ()), context)
    assert repr(content) == repr(before)  # not equal: NaN


@MANY
@given(st.sampled_from(SHIPPED), st.data(), CONTEXTS)
def test_a_shipped_configuration_with_one_value_changed(content, data, context):
    content = copy.deepcopy(content)
    section = data.draw(st.sampled_from([content, content["zero_optimization"], content["fp16"], content["bf16"]]))
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(VALUES)
    outcome(ConfigFile("c", "c.json", content, {}, ()), context)


@MANY
@given(st.one_of(CONFIGS, st.dictionaries(st.one_of(st.sampled_from(AROUND), NAMES), VALUES, max_size=8)), CONTEXTS)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_any_file(tmp_path_factory, suffix, content, context):
    path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
    try:
        text = json.dumps(content) if suffix == "json" else yaml.safe_dump(content, allow_unicode=True)
        path.write_text(text, encoding="utf-8")
    except (ValueError, UnicodeError):  # more digits than Python writes, a surrogate
        return
    configs, error = attempt(read_configs, path)
    assert configs is not None or error.startswith(f"{path}: ")
    for config in configs or []:
        outcome(config, context)


@MANY
@given(st.one_of(st.text(max_size=60), st.text(alphabet="{}[]:,\"'\n -#&*!|>%@`ab1$e", max_size=60)))
@pytest.mark.parametrize("suffix", ["json", "yaml", "cfg"])
def test_any_text(tmp_path_factory, suffix, text):
    path = tmp_path_factory.getbasetemp() / f"text.{suffix}"
    try:
        path.write_text(text, encoding="utf-8")
    except UnicodeError:
        return
    configs, error = attempt(read_configs, path)
    assert configs is not None or error.startswith(f"{path}: ")


@pytest.mark.parametrize("opening", ["[", '{"a":', "- "])
def test_a_deep_nest(tmp_path, opening):
    for suffix in ("json", "yaml"):
        path = tmp_path / f"deep.{suffix}"
        path.write_text(opening * 5000)
        with pytest.raises(ScenarioError):
            read_configs(path)


def test_a_deep_nest_that_closes(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"zero_optimization": ' * 200 + "{}" + "}" * 200)
    with pytest.raises(ScenarioError, match="nested too deeply, or too large"):
        read_configs(path)
