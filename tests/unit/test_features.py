"""What is refused before a launch: every rule where it holds and where it does not, and the rows that it makes."""

import json
from typing import Any

import pytest
from rich.console import Console

from bench.errors import ScenarioError
from bench.plan import PlannedCell, Resources, plan
from bench.run import run_matrix
from bench.scenario import Scenario
from bench.zero.features import FEATURES, Asked, impossible, markdown, unsupported

CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/somewhere"}


def asked(strategy: str = "z3", *, zero: dict[str, Any] | None = None, **changes: Any) -> Asked:
    settings: dict[str, Any] = {
        "deepspeed_keys": {},
        "world_size": 8,
        "num_nodes": 1,
        "dtype": "bf16",
        "device": "cuda",
        "deepspeed": "0.19.8",
    }
    return Asked(strategy=strategy, zero_optimization=zero or {}, **settings | changes)


FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
HPZ, MICS = "zero_hpz_partition_size", {"mics_shard_size": 2}
# (name, when) of each rule: where it holds, and the nearest case where it does not.
CASES = {
    ("offload_optimizer", "stage 0"): (
        asked("z0", zero={"offload_optimizer": CPU}),
        asked("z1", zero={"offload_optimizer": CPU}),
    ),
    ("offload_optimizer to NVMe", "stages 1, 2"): (
        asked("z2", zero={"offload_optimizer": NVME}),
        asked("z3", zero={"offload_optimizer": NVME}),
    ),
    ("offload_param", "stages 0, 1, 2"): (
        asked("z2", zero={"offload_param": CPU}),
        asked("z2", zero={"offload_param": {"device": "none"}}),
    ),
    ("offload to NVMe", "this suite"): (
        asked(zero={"offload_param": NVME}),
        asked(zero={"offload_param": CPU, "offload_optimizer": CPU}),
    ),
    (HPZ, "stages 0, 1, 2"): (asked("z2", zero={HPZ: 2}), asked("z2", zero={HPZ: 1})),
    (HPZ, "ranks not divisible by it"): (asked(zero={HPZ: 3}), asked(zero={HPZ: 4})),
    (HPZ, "one group of all ranks"): (asked(zero={HPZ: 8}), asked(zero={HPZ: 8}, world_size=16)),
    ("zero_quantized_weights", "CPU, emulation"): (
        asked(zero={"zero_quantized_weights": True}, device="cpu"),
        asked(zero={"zero_quantized_weights": True}),
    ),
    ("zero_quantized_nontrainable_weights", "CPU, emulation"): (
        asked(zero={"zero_quantized_nontrainable_weights": True}, device="emulated"),
        asked(zero={"zero_quantized_nontrainable_weights": False}, device="emulated"),
    ),
    ("zero_quantized_gradients", "CPU, emulation"): (
        asked(zero={"zero_quantized_gradients": True}, device="emulated"),
        asked(zero={"zero_quantized_gradients": True}),
    ),
    ("MiCS (mics_shard_size)", "deepspeed 0.19.8 and later"): (asked(zero=MICS), asked(zero=MICS, deepspeed="0.19.7")),
    ("MiCS (mics_shard_size)", "this suite, older releases"): (
        asked(zero=MICS, deepspeed="0.17.5"),
        asked(zero=MICS, deepspeed=""),  # not known: taken for new
    ),
    ("LoCo (zeropp_loco_param)", "deepspeed 0.19.8 and later"): (
        asked(zero={"zeropp_loco_param": {"err_beta": 0.8}}),
        asked(zero={"zeropp_loco_param": {"err_beta": 0.8}}, deepspeed="0.17.5"),
    ),
    ("grad_accum_dtype other than the model's", "stage 0"): (
        asked("z0", deepspeed_keys=FP32_SUMS),
        asked("z0", deepspeed_keys=FP32_SUMS, dtype="fp32"),
    ),
}


def test_every_rule_has_its_cases():
    assert [(feature.name, feature.when) for feature in FEATURES] == list(CASES)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: f"{feature.name}, {feature.when}")
def test_a_rule_holds_where_it_says_and_not_beside(feature):
    holds, beside = CASES[feature.name, feature.when]
    assert feature.holds(holds)
    assert not feature.holds(beside)
    reason = (impossible if feature.kind == "impossible" else unsupported)(holds)
    assert reason is not None
    assert reason.startswith(f"{feature.name}: ")


def test_nothing_is_refused_of_a_plain_cell():
    for strategy in ("ddp", "z0", "z1", "z2", "z3"):
        assert (impossible(asked(strategy)), unsupported(asked(strategy))) == (None, None)


def test_the_table_has_a_line_for_each_rule():
    header, _, *lines = markdown().splitlines()
    assert header == "| setting | where | refused as | reason |"
    assert [line.split(" | ")[2] for line in lines] == [
        {"impossible": "skipped", "unsupported": "unsupported"}[feature.kind] for feature in FEATURES
    ]


# In a plan, and in a run


def config(path: Any, **zero: Any) -> dict[str, str]:
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3} | zero}))
    return {"config": str(path)}


def cells(strategy: Any, deepspeed: str = "0.19.8", **matrix: Any) -> list[PlannedCell]:
    axes = {"model": "llama-tiny", "strategy": strategy, "world_size": 2, "seq_length": 32} | matrix
    offer = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True, deepspeed=deepspeed)
    return plan(Scenario.model_validate({"matrix": axes}), offer)


@pytest.mark.parametrize(
    ("zero", "status", "word"),
    [
        ({"zero_quantized_weights": True}, "unsupported", "qwZ runs on CUDA alone"),
        ({"offload_param": NVME}, "unsupported", "async_io"),
        ({"stage": 2, "offload_optimizer": NVME}, "skipped", "only stage 3 swaps to NVMe"),
        ({"zero_hpz_partition_size": 2}, "skipped", "each shard held twice"),
        ({"stage": 2, "offload_optimizer": CPU, "zero_hpz_partition_size": 2}, "skipped", "only stage 3 shards"),
    ],
)
@pytest.mark.parametrize("mode", ["measured", "emulated"])
def test_a_plan_says_what_is_refused_and_why(tmp_path, zero, status, word, mode):
    (entry,) = cells(config(tmp_path / "asked.json", **zero), mode=mode)
    assert entry.refused is not None
    found, reason = entry.refused
    assert found == status
    assert word in reason


@pytest.mark.parametrize(("deepspeed", "word"), [("0.19.8", "#8489"), ("0.17.5", "MiCS_Init")])
def test_mics_is_refused_in_every_release(tmp_path, deepspeed, word):
    (entry,) = cells(config(tmp_path / "mics.json", mics_shard_size=2), deepspeed)
    assert entry.refused is not None
    assert (entry.refused[0], word in entry.refused[1]) == ("unsupported", True)


def test_a_run_writes_refused_rows_without_a_launch_and_once(tmp_path):
    path = tmp_path / "refused.yaml"
    strategies = [
        config(tmp_path / "qwz.json", zero_quantized_weights=True),
        config(tmp_path / "nvme.json", offload_optimizer=NVME),
        config(tmp_path / "hpz.json", zero_hpz_partition_size=2),
    ]
    matrix = {"model": "llama-tiny", "strategy": strategies, "world_size": 2, "seq_length": 32}
    path.write_text(json.dumps({"matrix": matrix}))

    def run() -> list[Any]:
        options: dict[str, Any] = {"only": [], "fresh": False, "cpu_slots": 4, "isolation": "fork"}
        return run_matrix(path, results=tmp_path / "runs", console=Console(quiet=True), **options)[1]

    first = run()
    assert [(row.cell.strategy_name, row.status) for row in first] == [
        ("qwz", "unsupported"), ("nvme", "unsupported"), ("hpz", "skipped"),
    ]  # fmt: skip
    assert all(row.launch is None and row.reason for row in first)
    folder = tmp_path / "runs" / "refused"
    written = {file: file.stat().st_mtime_ns for file in (folder / "records").iterdir()}
    assert len(written) == 3
    assert run() == first
    assert {file: file.stat().st_mtime_ns for file in (folder / "records").iterdir()} == written
    assert not (folder / "superseded").exists()


def test_a_scenario_cannot_set_what_is_a_strategys_own():
    with pytest.raises(ValueError, match="offload_optimizer"):
        Scenario.model_validate(
            {"matrix": {"model": "llama-tiny", "strategy": "z2"}, "zero_optimization": {"offload_optimizer": CPU}}
        )
    with pytest.raises(ScenarioError):
        cells({"config": "/nowhere/at/all.json"})
