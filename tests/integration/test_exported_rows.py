"""An exported row, used: HF Trainer takes its optimizer steps, with its settings, and moves the same bytes."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from conftest import zerostage
from tokenizers import Tokenizer, models, pre_tokenizers

from bench.environment import fingerprint
from bench.export.command import show_config
from bench.launch.deepspeed import environment, free_port
from bench.launch.extensions import folder as extensions_folder
from bench.models.catalog import load_config
from bench.shared_memory import remove_buffers
from bench.store import read_records

pytestmark = pytest.mark.ranks

# (phase, operation, dtype, elements, bytes, ranks, during autograd, group); phases are left out.
TOKENS = ["", "all_gather", "int64", 2, 16, 2, False, "intra-node"]  # of a step, over which the loss is averaged
METRIC = ["", "all_gather", "float32", 2, 8, 2, False, "intra-node"]  # the loss; the floating-point operations so far
SMALL = {
    "reduce_bucket_size": 100_000,
    "stage3_prefetch_bucket_size": 10_000,
    "stage3_max_live_parameters": 40_000,
    "stage3_max_reuse_distance": 20_000,
    "stage3_param_persistence_threshold": 1_000,
}
MATRIX = {
    "model": "llama-tiny",
    "seq_length": 32,
    "world_size": 2,
    "strategy": ["z3", "z1", "z2-offload", "z3-offload-param"],
}
GAS_2 = {"strategy": "z2", "gradient_accumulation_steps": 2, "activation_checkpointing": True}
# In the order in which one process trains them: accelerate leaves word of DeepSpeed behind, which ddp must not find,
# and z3 needs what any row of DeepSpeed leaves.
DDP, Z3, Z1 = "ddp/w2/mbs1/gas1/s32/fp32", "z3/w2/mbs1/gas1/s32/bf16", "z1/w2/mbs1/gas1/s32/bf16"
Z2_GAS_2 = "z2/w2/mbs1/gas2/s32/bf16/ckpt"
UNDER_DEEPSPEED = [Z3, Z1, "z2-offload/w2/mbs1/gas1/s32/bf16", "z3-offload-param/w2/mbs1/gas1/s32/bf16", Z2_GAS_2]
WITHOUT_OPTIMIZER = "z1 without the optimizer section"


def folder_of(path, label):
    return path / label.replace("/", "-")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Measured rows by label, as a user has them, and their run folder."""
    folder = tmp_path_factory.mktemp("export")
    include = [MATRIX | GAS_2, MATRIX | {"strategy": "ddp", "dtype": "fp32"}]
    scenario = {"matrix": MATRIX, "include": include, "zero_optimization": SMALL, "warmup_steps": 1, "steps": 1}
    (folder / "rows.yaml").write_text(json.dumps(scenario))
    done = zerostage("run", folder / "rows.yaml", "--results", folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(folder / "runs" / "rows")
    return folder / "runs" / "rows", {record.label.removeprefix("llama-tiny/"): record for record in records}


def launched(argv, folder, python=sys.executable):
    """Run ranks of a test's own, with the environment of ranks."""
    port = free_port()
    stack = fingerprint()["stack"]
    env = environment("cpu", extensions_folder({name: stack[name] for name in ("python", "torch", "deepspeed")}))
    del env["PYTHONSAFEPATH"]  # the ranks import what lies beside their script
    done = subprocess.run(
        [python, "-m", *(part.format(port=port) for part in argv)],
        cwd=folder,
        env=env,
        timeout=1200,
        capture_output=True,
        text=True,
    )
    remove_buffers(str(port))
    said = done.stdout + done.stderr
    assert done.returncode == 0, "\n".join(re.findall(r"^.*(?:Error|, line \d+, in).*$", said, flags=re.M)[-40:])


TORCHRUN = ["torch.distributed.run", "--nproc_per_node=2", "--master_port={port}"]
RANKS = __file__.replace("test_exported_rows.py", "trainer_under_export.py")


def seen_under(launcher, folder, wanted):
    """Train from exported folders, a dict from name to folder and cell, in one launch; return what each left."""
    asked = [[str(where), cell.model_dump(), load_config(cell.model)] for where, cell in wanted.values()]
    (folder / "asked.json").write_text(json.dumps(asked))
    launched([*launcher, RANKS, str(folder / "asked.json"), str(folder / "seen.json")], folder)
    return dict(zip(wanted, json.loads((folder / "seen.json").read_text()), strict=True))


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    run, records = rows
    folder = tmp_path_factory.mktemp("trainer")
    wanted = {}
    for label in [DDP, *UNDER_DEEPSPEED]:
        wanted[label] = folder_of(folder, label), records[label].cell
        show_config(run, f"llama-tiny/{label}", "trainer", wanted[label][0])
    bare = folder / "bare"
    show_config(run, f"llama-tiny/{Z1}", "trainer", bare)
    config = json.loads((bare / "ds_config.json").read_text())
    del config["optimizer"]
    (bare / "ds_config.json").write_text(json.dumps(config))
    wanted[WITHOUT_OPTIMIZER] = bare, records[Z1].cell
    return seen_under(TORCHRUN, folder, wanted)


@pytest.mark.parametrize("label", [DDP, *UNDER_DEEPSPEED])
def test_trainer_issues_the_collectives_of_the_row_and_three_of_its_own(rows, trained, label):
    seen, record = trained[label], rows[1][label]
    assert seen["settled"] == [TOKENS, *seen["ours"]]
    assert seen["logged"] == [METRIC, METRIC, TOKENS, *seen["ours"]]
    measured = Counter()
    for found in record.comm.collectives:
        settings = found.model_dump(exclude={"phase", "count", "wire_bytes"})
        measured[tuple(settings.values())] += found.count
    assert Counter(tuple(event[1:]) for event in seen["ours"]) == measured
    assert seen["steps"] == record.cell.total_steps == len(record.losses)
    assert all(6 < loss < 8 for loss in seen["losses"])  # ln 1024 = 6.93: random weights, and no step was lost


@pytest.mark.parametrize("label", UNDER_DEEPSPEED)
def test_the_engine_of_trainer_has_the_settings_of_the_row(rows, trained, label):
    theirs, ours = trained[label]["effective"], rows[1][label].effective
    # Read after training, not before it: stage 3 has then found its masters.
    expected = {"optimizer_steps_at_start": (rows[1][label].cell.total_steps, 0), "node_of_rank": (None, [0, 0])}
    if label.startswith("z3"):
        expected["master_dtype"] = ("float32", None)
    differing = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
    assert {key: (theirs.get(key), ours.get(key)) for key in differing} == expected


def test_without_the_optimizer_section_trainer_trains_in_two_groups(trained):
    """So the section is needed, and the comparison can fail: parameters are gathered once per group."""
    ours, theirs = trained[Z1]["ours"], trained[WITHOUT_OPTIMIZER]["settled"]
    gathers = [[event for event in events if event[1] == "all_gather_into_tensor"] for events in (ours, theirs)]
    assert [len(found) for found in gathers] == [1, 2]
    assert sum(event[3] for event in gathers[1]) == gathers[0][0][3]


@pytest.mark.slow
@pytest.mark.parametrize("label", [Z3, Z2_GAS_2])
def test_accelerate_launches_the_row(rows, tmp_path, label):
    run, records = rows
    show_config(run, f"llama-tiny/{label}", "accelerate", tmp_path)
    launcher = ["accelerate.commands.launch", "--config_file", "accelerate.yaml", "--main_process_port={port}"]
    (seen,) = seen_under(launcher, tmp_path, {label: (tmp_path, records[label].cell)}).values()
    assert seen["settled"] == [TOKENS, *seen["ours"]]
    assert seen["logged"] == [METRIC, METRIC, TOKENS, *seen["ours"]]


@pytest.mark.slow
def test_the_script_alone_trains_at_stage_3(rows, tmp_path):
    run, records = rows
    done = zerostage("select", "config", records[Z3].cell_id, "--as", "trainer", run, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    launched([*TORCHRUN, "train.py"], tmp_path)


def write_tokenizer(folder):
    """Write one of bytes: transformers refuses to train text without a tokenizer, and none is to be downloaded."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": "</s>"}))


@pytest.mark.slow
def test_llamafactory_issues_the_collectives_of_the_row_and_three_of_its_own(rows, trained, tmp_path):
    """LLAMAFACTORY_PYTHON: the interpreter of an environment that has it, if this one has not."""
    python = os.environ.get("LLAMAFACTORY_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import llamafactory.train.tuner"], capture_output=True).returncode:
        pytest.skip("llamafactory is not installed; name an interpreter that has it in LLAMAFACTORY_PYTHON")
    run, records = rows
    show_config(run, f"llama-tiny/{Z2_GAS_2}", "llamafactory", tmp_path)
    write_tokenizer(tmp_path / "model")
    (tmp_path / "data").mkdir()
    info = {"c4_demo": {"file_name": "demo.jsonl", "columns": {"prompt": "text"}}}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    lines = [json.dumps({"text": f"the text number {number}, of which some make a sequence"}) for number in range(200)]
    (tmp_path / "data" / "demo.jsonl").write_text("\n".join(lines))
    ranks = RANKS.replace("trainer_under", "llamafactory_under")
    launched([*TORCHRUN, ranks, "seen.json"], tmp_path, python)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["steps"] == records[Z2_GAS_2].cell.total_steps
    assert seen["settled"] == [TOKENS, *trained[Z2_GAS_2]["ours"]]
    assert seen["logged"] == [METRIC, METRIC, TOKENS, *trained[Z2_GAS_2]["ours"]]
    # LLaMA-Factory wraps the function that recomputes, and the wrapper does not say how.
    theirs, ours = seen["effective"], trained[Z2_GAS_2]["effective"]
    assert theirs == ours | {"activation_checkpointing": "unknown"}
