"""Real DeepSpeed ranks move, to the byte, what bench.zero.practice says: the cells in which a rule could go wrong."""

import json
import subprocess
from pathlib import Path

import pytest

from bench.cell import Cell
from bench.environment import fingerprint
from bench.launch.deepspeed import command, environment
from bench.launch.extensions import folder as extensions_folder
from bench.models.catalog import load_config
from bench.shared_memory import remove_buffers
from bench.validity.traffic import practice_volumes
from bench.zero.practice import practice

pytestmark = pytest.mark.ranks

RANKS = Path(__file__).with_name("traffic_ranks.py")
SPLIT = {
    "reduce_bucket_size": 100_000,
    "stage3_prefetch_bucket_size": 10_000,
    "stage3_max_live_parameters": 40_000,
    "stage3_max_reuse_distance": 20_000,
    "stage3_param_persistence_threshold": 1_000,
}
SMALL_BUCKET = {"reduce_bucket_size": 20_000}
ODD = {
    "num_hidden_layers": 2,
    "hidden_size": 63,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "intermediate_size": 175,
    "vocab_size": 1001,
    "attention_bias": True,
}
CELLS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "stage 2 at every micro-step": (
        {
            "strategy": "z2",
            "model": "llama-tiny-tied",
            "activation_checkpointing": True,
            "zero_optimization": SMALL_BUCKET,
        },
        {},
    ),
    "stage 1 pads its flat parameters": ({"strategy": "z1", "zero_optimization": SMALL_BUCKET}, ODD),
    "stage 2 reduces to the owners": (
        {"strategy": "z2", "zero_optimization": {"use_multi_rank_bucket_allreduce": False} | SMALL_BUCKET},
        {},
    ),
    "stage 3 pads every parameter": ({"strategy": "z3", "zero_optimization": SPLIT}, ODD),
    "stage 3 splits and recomputes": (
        {"strategy": "z3", "activation_checkpointing": True, "zero_optimization": SPLIT},
        {},
    ),
    "stage 3 splits with tied embeddings": (
        {"strategy": "z3", "model": "llama-tiny-tied", "zero_optimization": SPLIT},
        {},
    ),
    "stage 3 recomputes gpt2": (
        {"strategy": "z3", "model": "gpt2-tiny", "activation_checkpointing": True, "zero_optimization": SPLIT},
        {},
    ),
    "stage 3 with experts as one leaf": (
        {"strategy": "z3", "model": "mixtral-tiny", "activation_checkpointing": True, "zero_optimization": SPLIT},
        {},
    ),
    "stage 3 fetches by all-reduce, in fp32": (
        {
            "strategy": "z3",
            "dtype": "fp32",
            "zero_optimization": SPLIT
            | {"stage3_use_all_reduce_for_fetch_params": True, "reduce_scatter": False, "reduce_bucket_size": 20_000},
        },
        {},
    ),
    "stage 3 with a budget for what persists": (
        {
            "strategy": "z3",
            "zero_optimization": SPLIT
            | {"stage3_param_persistence_threshold": 3_000, "stage3_model_persistence_threshold": 5_000},
        },
        {},
    ),
}


def cell(settings):
    return Cell(
        **({"model": "llama-tiny", "gradient_accumulation_steps": 2, "world_size": 2, "seq_length": 16} | settings)
    )


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    cells = [(cell(settings), load_config(cell(settings).model) | changes) for settings, changes in CELLS.values()]
    (folder / "cells.json").write_text(json.dumps([[asked.model_dump(), config] for asked, config in cells]))
    argv = [part for part in command(2, "cpu", folder / "cells.json")[:-2] if part != "--module"]
    argv += [str(RANKS), str(folder / "cells.json"), str(folder / "moved.json")]
    stack = fingerprint()["stack"]
    env = environment("cpu", extensions_folder({name: stack[name] for name in ("python", "torch", "deepspeed")}))
    done = subprocess.run(argv, env=env, timeout=1200, capture_output=True, text=True)
    (port,) = [part.removeprefix("--master_port=") for part in argv if part.startswith("--master_port=")]
    remove_buffers(port)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    found = json.loads((folder / "moved.json").read_text())
    return dict(zip(CELLS, zip(cells, found, strict=True), strict=True))


@pytest.mark.parametrize("name", CELLS)
def test_measured_is_predicted(moved, name):
    (asked, config), found = moved[name]
    expected = practice(asked, config, "gloo")
    assert {tuple(key): num_bytes for *key, num_bytes in found} == practice_volumes(expected)
