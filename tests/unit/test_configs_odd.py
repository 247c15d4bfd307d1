"""Odd and malformed configurations, each with exactly what becomes of it: tests/data/odd_configs.yaml."""

from pathlib import Path

import pytest
import yaml

from bench.configs import ConfigFile, Context, read_configs, resolve
from bench.errors import ScenarioError

CASES = yaml.safe_load((Path(__file__).parents[1] / "data" / "odd_configs.yaml").read_text(encoding="utf-8"))
CONTEXT = Context(
    4096, 8, None, None, None, None, lr=1e-3, weight_decay=0.01, gradient_clipping=1.0, deepspeed="0.19.8"
)
SIZES = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
OPTIMIZER = {"lr": 1e-3, "weight_decay": 0.01, "gradient_clipping": 1.0}
LEFT_OUT = (
    "neither fp16 nor bf16 is in the file",
    "gradient_clipping is not set",
    "zero_optimization.stage is not set",
    "stage is a list",
)


def test_there_are_many_and_no_two_alike():
    assert len({case["case"] for case in CASES}) == len(CASES) > 150


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_an_odd_configuration(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(case["file"])
    path.write_text(case["text"], encoding="utf-8")
    if "error" in case:
        with pytest.raises(ScenarioError) as error:
            [resolve(config, CONTEXT) for config in read_configs(path)]
        assert str(error.value) == case["error"]
        return
    configs = read_configs(path)
    assert [config.name for config in configs] == case.get("names", ["c"])
    assert configs[0].settings == case.get("beside", {})
    found = [resolve(config, CONTEXT) for config in configs][-1]
    assert found.strategy == case["strategy"]
    assert found.zero_optimization == case.get("zero_optimization", {})
    assert found.deepspeed == case.get("deepspeed", {})
    assert found.settings == {"dtype": "fp32"} | SIZES | case.get("settings", {})
    assert found.optimizer == OPTIMIZER | case.get("optimizer", {})
    assert found.impossible == case.get("impossible")
    assert [note for note in found.notes if not note.startswith(LEFT_OUT)] == case.get("notes", [])


def test_whole_numbers_come_out_as_int():
    """A bucket size of 5e8 that stayed a float would be refused by DeepSpeed's operations, and name another cell."""
    given = {
        "zero_optimization": {"stage": 3, "sub_group_size": 1e9, "offload_param": {"device": "cpu", "max_in_cpu": 1e9}}
    }
    zero = resolve(ConfigFile("c", "c.json", given, {}, ()), CONTEXT).zero_optimization
    assert type(zero["sub_group_size"]) is int
    assert type(zero["offload_param"]["max_in_cpu"]) is int


def test_a_byte_order_mark_is_named(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b'\xef\xbb\xbf{"zero_optimization": {"stage": 2}}')
    with pytest.raises(ScenarioError, match="line 1 starts with a byte order mark; save the file as UTF-8 without BOM"):
        read_configs(path)


def test_a_number_of_5000_digits(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"zero_optimization": {"stage": 2, "reduce_bucket_size": %s}}' % ("9" * 5000))
    with pytest.raises(ScenarioError, match="a number has more digits than any that a configuration holds"):
        read_configs(path)


@pytest.mark.parametrize(("name", "why"), [("absent.json", "No such file"), ("folder", "Is a directory")])
def test_what_cannot_be_read(name, why, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ScenarioError, match=f"{name}: cannot read the configuration: {why}"):
        read_configs(tmp_path / name)


def test_text_of_another_encoding(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes('{"a": "é"}'.encode("latin-1"))
    with pytest.raises(ScenarioError, match="not UTF-8 text"):
        read_configs(path)


def test_a_text_that_many_aliases_blow_up(tmp_path):
    path = tmp_path / "c.yaml"
    rows = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path.write_text("\n".join(rows))
    with pytest.raises(ScenarioError, match="nested too deeply, or too large"):
        read_configs(path)


@pytest.mark.parametrize(
    ("content", "asked", "dtype", "impossible"),
    [
        ({"fp16": {"enabled": True}}, "bf16", "fp16", None),
        ({"fp16": {"enabled": False}}, "bf16", "bf16", None),
        (
            {"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}},
            "fp16",
            "fp32",
            "fp16.enabled is false in the file",
        ),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "bf16", "fp32", None),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "fp32", "fp32", None),
        ({"fp16": {"enabled": "auto"}}, None, "fp16", None),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, None, "bf16", None),
        ({}, "fp16", "fp16", None),
    ],
)
def test_which_dtype(content, asked, dtype, impossible):
    context = Context(64, 2, asked, None, None, None, 1e-3, 0.01, 1.0, "0.19.8")
    found = resolve(ConfigFile("c", "c.json", content, {}, ()), context)
    assert found.settings["dtype"] == dtype
    assert (found.impossible or "").startswith(impossible or "")
    assert (found.impossible is None) == (impossible is None)


@pytest.mark.parametrize(
    ("given", "asked", "sizes", "holds"),
    [  # (total, micro, accumulation) of the file and of the scenario, on 4 ranks
        ((None, None, None), (None, None, None), (4, 1, 1), True),
        ((None, None, None), (None, 2, 3), (24, 2, 3), True),
        (("auto", "auto", "auto"), (32, 2, None), (32, 2, 4), True),
        (("auto", "auto", "auto"), (30, 2, None), (30, 2, 3), False),
        ((32, None, None), (None, None, None), (32, 8, 1), True),
        ((32, None, None), (None, 2, None), (32, 2, 4), True),
        ((32, "auto", "auto"), (None, 2, 2), (32, 2, 2), False),
        ((32, None, 2), (None, 1, None), (32, 4, 2), True),
        ((None, 4, 2), (None, 1, 1), (32, 4, 2), True),
        ((None, 4, None), (None, 1, 3), (48, 4, 3), True),
        ((32, 4, 2), (64, 1, 1), (32, 4, 2), True),
        ((32, 4, 4), (None, None, None), (32, 4, 4), False),
        ((2, None, None), (None, None, None), (2, 1, 1), False),
    ],
)
def test_the_batch_triple(given, asked, sizes, holds):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    content = {name: value for name, value in zip(names, given, strict=True) if value is not None}
    total, micro, steps = asked
    context = Context(64, 4, None, micro, steps, total, 1e-3, 0.01, 1.0, "0.19.8")
    found = resolve(ConfigFile("c", "c.json", content, {}, ()), context)
    assert tuple(found.settings[name] for name in names) == sizes
    assert (found.impossible is None) == holds
    assert holds or found.impossible.startswith("batch triple impossible: train_batch_size")


def test_hpz_must_divide_the_ranks():
    content = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}}
    found = resolve(ConfigFile("c", "c.json", content, {}, ()), CONTEXT)
    assert found.impossible == "zero_hpz_partition_size 3 does not divide world_size 8"


def test_sparse_gradients_depend_on_the_release():
    config = ConfigFile("c", "c.json", {"sparse_gradients": True}, {}, ())
    old = Context(64, 2, None, None, None, None, 1e-3, 0.01, 1.0, "0.18.4")
    assert resolve(config, old).deepspeed == {"sparse_gradients": True}
    assert resolve(config, old).impossible is None
    assert resolve(config, CONTEXT).impossible == "sparse_gradients: DeepSpeed 0.19.8 and later refuse the key"
    assert resolve(config, CONTEXT).deepspeed == {}
