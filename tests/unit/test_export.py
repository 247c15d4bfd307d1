import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cell import Cell, EmulatedRank
from bench.errors import ScenarioError, StoreError
from bench.export.command import as_text, show_config, write_files
from bench.export.deepspeed import deepspeed_config
from bench.export.formats import FORMATS, exported
from bench.models.catalog import load_config
from bench.record import Record, parse_record
from bench.scenario import Optimizer
from bench.store import MANIFEST_VERSION, write_json, write_record
from bench.zero.ds_config import ds_config
from bench.zero.stages import VARIANTS

RECORDS = Path(__file__).parents[1] / "data" / "records"
OURS = {"steps_per_print", "wall_clock_breakdown"}
DDP = {"strategy": "ddp", "dtype": "fp32"}


def row(device: str = "cuda", **settings: Any) -> Record:
    cell = Cell(**{"model": "llama-tiny", "strategy": "z2", "world_size": 8, "seq_length": 64} | settings)
    return Record(
        cell_id=cell.cell_id,
        repeat=0,
        label=cell.label,
        cell=cell,
        train_batch_size=cell.train_batch_size,
        num_params=315968,
        provenance=cell.provenance,
        status="completed",
        device=device,
        stack={"deepspeed": "0.19.8", "torch": "2.13.0"},
    )


def files(target: str, device: str = "cuda", **settings: Any) -> dict[str, str]:
    record = row(device, **settings)
    return exported(record, load_config(record.cell.model), target)


def variant(name: str) -> dict[str, Any]:
    found = VARIANTS[name]
    return {"strategy": found.strategy, "zero_optimization": found.zero_optimization, "deepspeed": found.deepspeed}


def arguments(text: str) -> dict[str, Any]:
    """Read ARGUMENTS back from the text of a script, which must be Python."""
    (value,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "ARGUMENTS"
    )
    return ast.literal_eval(value)  # type: ignore[no-any-return]


CELLS: list[dict[str, Any]] = [
    {"strategy": "z0", "dtype": "fp32"},
    {"strategy": "z1", "dtype": "fp16", "optimizer": Optimizer(lr=1e-5, weight_decay=0.1, gradient_clipping=0.5)},
    {"strategy": "z3", "gradient_accumulation_steps": 4, "zero_optimization": {"stage3_prefetch_bucket_size": 7}},
    *(variant(name) for name in VARIANTS),
]


@pytest.mark.parametrize("settings", CELLS)
def test_the_json_is_what_the_worker_hands_over_and_the_optimizer(settings: dict[str, Any]) -> None:
    (text,) = files("deepspeed", **settings).values()
    written = json.loads(text)
    cell = row(**settings).cell
    optimizer = written.pop("optimizer")
    expected = {key: value for key, value in ds_config(cell).items() if key not in OURS}
    expected["zero_optimization"] = {
        key: value for key, value in expected["zero_optimization"].items() if key != "log_trace_cache_warnings"
    }
    assert written == expected
    assert optimizer == {
        "type": "AdamW",
        "params": {
            "lr": cell.optimizer.lr,
            "betas": [0.9, 0.999],
            "eps": 1e-08,
            "weight_decay": cell.optimizer.weight_decay,
            "torch_adam": True,
            "foreach": False,
        },
    }


@pytest.mark.parametrize(("implementation", "says"), [("foreach", {"foreach": True}), ("fused", {"fused": True})])
def test_the_implementation_of_adamw_is_said(implementation: str, says: dict[str, bool]) -> None:
    cell = row(optimizer=Optimizer.model_validate({"implementation": implementation})).cell
    params = deepspeed_config(cell)["optimizer"]["params"]
    assert {key: params[key] for key in ("foreach", "fused") if key in params} == says


def test_the_adamw_is_torchs_with_its_own_defaults() -> None:
    import torch

    params = deepspeed_config(row().cell)["optimizer"]["params"]
    del params["torch_adam"]
    built = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], **{**params, "betas": tuple(params["betas"])})
    plain = torch.optim.AdamW(built.param_groups[0]["params"], lr=1e-3, weight_decay=0.01, foreach=False)
    assert built.defaults == plain.defaults


def test_keys_of_the_suite_that_the_user_has_set_are_the_users() -> None:
    cell = row(strategy="z3", deepspeed={"steps_per_print": 50}, zero_optimization={"log_trace_cache_warnings": False})
    config = deepspeed_config(cell.cell)
    assert config["steps_per_print"] == 50
    assert config["zero_optimization"] == {"stage": 3, "log_trace_cache_warnings": False}
    assert "wall_clock_breakdown" not in config


@pytest.mark.parametrize("settings", CELLS)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_trainers_arguments_say_what_the_json_says(settings: dict[str, Any], device: str) -> None:
    """Where they differ, transformers refuses to start."""
    found = files("trainer", device, **settings)
    given, config = arguments(found["train.py"]), json.loads(found["ds_config.json"])
    params = config["optimizer"]["params"]
    assert given["deepspeed"] == "ds_config.json"
    assert given["per_device_train_batch_size"] == config["train_micro_batch_size_per_gpu"]
    assert given["gradient_accumulation_steps"] == config["gradient_accumulation_steps"]
    assert given["max_grad_norm"] == config["gradient_clipping"]
    assert (given["learning_rate"], given["weight_decay"]) == (params["lr"], params["weight_decay"])
    assert [given["adam_beta1"], given["adam_beta2"]] == params["betas"]
    assert given["adam_epsilon"] == params["eps"]
    assert (given["bf16"], given["fp16"]) == (config["bf16"]["enabled"], config["fp16"]["enabled"])
    assert given["lr_scheduler_type"] == "constant"
    assert given.get("use_cpu", False) == (device == "cpu")


@pytest.mark.parametrize("asked", [False, True])
def test_activation_checkpointing(asked: bool) -> None:
    trainer = arguments(files("trainer", activation_checkpointing=asked)["train.py"])
    factory = yaml.safe_load(files("llamafactory", activation_checkpointing=asked)["llamafactory.yaml"])
    assert trainer.get("gradient_checkpointing", False) is asked
    assert trainer.get("gradient_checkpointing_kwargs") == ({"use_reentrant": False} if asked else None)
    assert (factory["disable_gradient_checkpointing"], factory["use_reentrant_gc"]) == (not asked, False)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "torchrun --nproc_per_node=8"),
        ({"num_nodes": 2}, "torchrun --nnodes=2 --node_rank=NUMBER_OF_THIS_NODE --master_addr=HOST_OF_NODE_0 "),
        ({"world_size": 64, "emulation": EmulatedRank()}, "torchrun --nnodes=8 --node_rank=NUMBER_OF_THIS_NODE "),
    ],
)
def test_commands_name_ranks_and_nodes(settings: dict[str, Any], command: str) -> None:
    text = files("trainer", **settings)["train.py"]
    (line,) = (line for line in text.splitlines() if line.startswith("Run it, in its folder: "))
    words = shlex.split(line)
    assert command in line
    nodes = 1 if "--nnodes" not in line else int(next(w for w in words if "nnodes" in w).split("=")[1])
    per_node = int(next(w for w in words if "nproc" in w).split("=")[1])
    assert nodes * per_node == row(**settings).cell.world_size
    assert ("HOST_OF_NODE_0 replaced" in text) == (nodes > 1)


def test_accelerates_file() -> None:
    found = files("accelerate", strategy="z3", num_nodes=2)
    assert set(found) == {"accelerate.yaml", "train.py", "ds_config.json", "model/config.json"}
    settings = yaml.safe_load(found["accelerate.yaml"])
    assert settings["distributed_type"] == "DEEPSPEED"
    assert settings["deepspeed_config"] == {
        "deepspeed_config_file": "ds_config.json",
        "zero3_init_flag": True,
        "deepspeed_multinode_launcher": "standard",
    }
    assert (settings["num_machines"], settings["num_processes"]) == (2, 8)
    assert "mixed_precision" not in settings  # accelerate refuses it beside a file
    assert "deepspeed" not in arguments(found["train.py"])


def test_llamafactorys_file() -> None:
    found = files("llamafactory", strategy="z3", gradient_accumulation_steps=2)
    text = found["llamafactory.yaml"]
    assert "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train llamafactory.yaml" in text
    assert "Replace dataset" in text
    assert "Replace model_name_or_path" in text
    settings = yaml.safe_load(text)
    assert {key: settings[key] for key in ("stage", "finetuning_type", "deepspeed", "cutoff_len", "packing")} == {
        "stage": "pt",
        "finetuning_type": "full",
        "deepspeed": "ds_config.json",
        "cutoff_len": 64,
        "packing": True,
    }
    assert (settings["per_device_train_batch_size"], settings["gradient_accumulation_steps"]) == (1, 2)


@pytest.mark.parametrize(("strategy", "device"), [("z3", "cpu"), ("z3", "cuda"), ("z2", "cpu")])
def test_llamafactory_is_told_of_stage_3_on_cpus(strategy: str, device: str) -> None:
    text = files("llamafactory", device, strategy=strategy)["llamafactory.yaml"]
    assert ("init_distributed" in text) == (strategy == "z3" and device == "cpu")
    script = files("trainer", device, strategy=strategy)["train.py"]
    assert ('deepspeed.init_distributed("gloo")' in script) == (device == "cpu")


def test_how_experts_run_is_said_where_it_can_be() -> None:
    settings = {"model": "mixtral-tiny", "experts_implementation": "eager"}
    assert 'dtype=torch.bfloat16, experts_implementation="eager")' in files("trainer", **settings)["train.py"]
    assert "ran its experts as eager" in files("llamafactory", **settings)["llamafactory.yaml"]


def test_a_model_of_the_catalog_comes_with_its_configuration_and_a_hub_id_is_named() -> None:
    own = files("trainer")
    assert json.loads(own["model/config.json"]) == load_config("llama-tiny")
    assert 'MODEL = "model"' in own["train.py"]
    record = row(model="org/model")
    named = exported(record, load_config("llama-tiny"), "llamafactory")
    assert set(named) == {"llamafactory.yaml", "ds_config.json"}
    assert yaml.safe_load(named["llamafactory.yaml"])["model_name_or_path"] == "org/model"
    assert "Replace model_name_or_path" not in named["llamafactory.yaml"]


@pytest.mark.parametrize("target", ["llamafactory", "accelerate", "trainer"])
def test_ddp_in_fp32_goes_without_deepspeed(target: str) -> None:
    found = files(target, **DDP)
    assert "ds_config.json" not in found
    if target == "llamafactory":
        text = found["llamafactory.yaml"]
        assert "deepspeed" not in yaml.safe_load(text)
        assert "weight decay leaves out norms and biases" in text
    else:
        assert "deepspeed" not in arguments(found["train.py"])
        assert "foreach=False, fused=False" in found["train.py"]


@pytest.mark.parametrize("target", FORMATS)
def test_ddp_in_bf16_is_refused(target: str) -> None:
    with pytest.raises(ScenarioError, match=rf"ddp/.* cannot be exported as {target}: ddp .*a row of z0"):
        files(target, strategy="ddp")


@pytest.mark.parametrize("target", FORMATS)
def test_fsdp2_is_refused_and_never_written_as_ddp(target: str) -> None:
    with pytest.raises(ScenarioError, match=rf"fsdp2/.* cannot be exported as {target}: fsdp2 .*a row of z3"):
        files(target, strategy="fsdp2", dtype="fp32")


def test_ddp_has_no_deepspeed_configuration() -> None:
    with pytest.raises(ScenarioError, match="exported as deepspeed: ddp runs without DeepSpeed; take --as trainer"):
        files("deepspeed", **DDP)


@pytest.mark.parametrize("target", FORMATS)
def test_an_emulated_row_is_exported_for_the_gpus_that_it_stands_for(target: str) -> None:
    record = parse_record((RECORDS / "v3-emulated.json").read_text(), "v3-emulated.json")
    found = exported(record, load_config(record.cell.model), target)
    assert not any("use_cpu" in text or "gloo" in text for text in found.values())
    assert json.loads(found["ds_config.json"])["train_batch_size"] == record.train_batch_size
    first = [text.splitlines()[0] for name, text in found.items() if name.endswith((".py", ".yaml"))]
    assert all(f"zerostage row {record.cell_id}" in line and "emulated with" in line for line in first)


# Finding the row, and where its files go


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record = row()
    cells = [{"cell_id": each.cell_id, "label": each.label} for each in (record, row(strategy="z1"))]
    manifest = {"scenario": {}, "scenario_path": "a.yaml", "scenario_name": "a", "cells": cells, "environment": {}}
    write_json(tmp_path / "a" / "manifest.json", manifest | {"manifest_version": MANIFEST_VERSION})
    write_record(tmp_path / "a", record)
    return tmp_path / "a"


def test_one_file_is_printed_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_config(run, row().label, "deepspeed", None)
    assert json.loads(capsys.readouterr().out) == deepspeed_config(row().cell)


def test_several_files_are_printed_with_their_names(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_config(run, f"{row().cell_id}-r0", "trainer", None)
    out = capsys.readouterr().out
    found = files("trainer")
    assert out == as_text(found)
    assert all(f"==> {name} <==\n{text}" in out for name, text in found.items())


def test_unknown_cells_and_missing_rows_are_named(run: Path) -> None:
    with pytest.raises(StoreError, match=r"no cell 'nope'; 'zerostage plan a.yaml' lists them"):
        show_config(run, "nope", "deepspeed", None)
    with pytest.raises(StoreError, match=r"no row of .*z1.* yet; go on with 'zerostage run a.yaml'"):
        show_config(run, row(strategy="z1").label, "deepspeed", None)


def test_files_are_written_and_never_over_others(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    show_config(run, row().label, "trainer", folder)
    written = {name: (folder / name).read_text() for name in files("trainer")}
    assert written == files("trainer")
    assert capsys.readouterr().out.split() == [str(folder / name) for name in written]
    show_config(run, row().label, "trainer", folder)  # the same again
    (folder / "ds_config.json").write_text("mine")
    (folder / "train.py").unlink()
    with pytest.raises(StoreError, match=r"ds_config.json: there already, with another content; .*--output"):
        show_config(run, row().label, "trainer", folder)
    assert (folder / "ds_config.json").read_text() == "mine"
    assert not (folder / "train.py").exists()  # all or none


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write \(.*\); choose a folder with --output"):
        write_files(tmp_path / "file" / "out", {"a": "b"})
