"""LoRA, frozen parts, recomputation and attention in real ranks: measured, emulated and predicted are one number."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agreement import SMALL_BUCKETS, emulated, measured
from forked import planned

from bench.environment import fingerprint
from bench.launch.deepspeed import environment
from bench.launch.extensions import folder
from bench.validity.traffic import measured_volumes, practice_volumes

pytestmark = pytest.mark.ranks

LORA = {"finetuning": "lora"}
FREEZE = {"finetuning": "freeze", "freeze": {"trainable": ["model.layers.1.*", "lm_head*"]}}
RECOMPUTE, REENTRANT = {"activation_checkpointing": True}, {"activation_checkpointing": "reentrant"}
EAGER = {"attn_implementation": "eager"}
GAS, MICRO_2 = {"gradient_accumulation_steps": 2}, {"train_micro_batch_size_per_gpu": 2}
SMALL = {"zero_optimization": SMALL_BUCKETS}
CELLS = [
    {"strategy": "z1"} | LORA | SMALL,
    {"strategy": "z2"} | LORA | SMALL | RECOMPUTE,
    {"strategy": "z3"} | LORA | SMALL | RECOMPUTE,
    {"strategy": "z3"} | FREEZE | SMALL | RECOMPUTE,
    {"strategy": "z3"} | SMALL | REENTRANT,
]
MORE = [
    {"strategy": "z0"} | LORA,
    {"strategy": "z3"} | LORA | SMALL,
    {"strategy": "z3"} | LORA | SMALL | RECOMPUTE | GAS,
    {"strategy": "z1"} | LORA | SMALL | GAS,
    {"strategy": "z2"} | FREEZE | SMALL | GAS,
    {"strategy": "z3"} | FREEZE | SMALL,
    {"strategy": "z3"} | FREEZE | SMALL | REENTRANT,
    {"strategy": "z3"} | LORA | SMALL | REENTRANT | MICRO_2,
    {"strategy": "z3", "model": "gpt2-tiny"} | LORA | SMALL | RECOMPUTE,
    {"strategy": "z3", "model": "llama-tiny-tied"} | LORA | SMALL,
    {"strategy": "z3", "lora": {"target_modules": ["down_proj"], "r": 4}} | LORA | SMALL | RECOMPUTE,
    {"strategy": "z2"} | EAGER | SMALL | MICRO_2,
    {"strategy": "z3"} | EAGER | SMALL | MICRO_2 | RECOMPUTE,
]
# What has no exact formula: norms and scalars, the batch, what is born in backward, and the peak.
NOT_EXACT = {"step_temporaries"}


def name(settings):
    return planned(**settings).label


def expected_findings(settings):
    """Stage 0 in 16-bit starts with a step of its own."""
    return ["parity"] if settings["strategy"] == "z0" else []


def agree(ranks, settings):
    """Measure a cell; hold it against its reference run, the prediction and the same rank emulated."""
    record, counted = measured(ranks, settings)
    assert [finding.check for finding in record.findings] == expected_findings(settings)
    assert record.parity.worst_loss_difference < 1e-3
    assert measured_volumes(record.comm) == practice_volumes(record.practice)
    assert len({rank.optimizer_states for rank in record.shards}) == 1
    for point in record.memory.ranks[-1].points:
        if point.point != "peak":
            exact = {key: value for key, value in point.predicted.items() if key not in NOT_EXACT}
            assert {key: point.bytes.get(key, 0) for key in exact} == exact, point.point
    assert emulated(ranks, settings, 1) == counted[1]
    return record


@pytest.mark.parametrize("settings", CELLS, ids=name)
def test_measured_is_predicted_and_emulated(ranks, settings):
    record = agree(ranks, settings)
    assert record.effective["finetuning"] == record.cell.finetuning
    assert record.effective["activation_checkpointing"] == record.cell.checkpointing


@pytest.mark.slow
@pytest.mark.parametrize("settings", MORE, ids=name)
def test_more_is_predicted_and_emulated(ranks, settings):
    agree(ranks, settings)


def test_ddp_trains_the_same_adapters(ranks):
    record = ranks.measure(planned(strategy="ddp", **LORA))
    assert (record.status, record.validity, record.findings) == ("completed", "valid", [])
    assert (record.num_params, record.num_trainable_params) == (353_344, 37_376)
    assert sum(measured_volumes(record.comm).values()) == 2 * 37_376
    assert record.throughput.tflops_per_gpu is None


def test_an_attention_that_this_machine_lacks_is_unsupported_with_the_reason(ranks):
    record = ranks.measure(planned(strategy="z1", attn_implementation="flash_attention_2"))
    assert record.status == "unsupported"
    assert "attn_implementation flash_attention_2: " in record.reason


def experts(kind, out, timeout_s):
    """Run two ranks of experts_ranks.py; return their exit statuses, and what they left."""
    stack = fingerprint()["stack"]
    env = environment("cpu", folder({name: stack[name] for name in ("python", "torch", "deepspeed")}))
    env |= {"LOCAL_SIZE": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    argv = [sys.executable, Path(__file__).with_name("experts_ranks.py"), kind, str(timeout_s), out]
    started = [
        subprocess.Popen(argv, env=os.environ | env | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    try:
        errors = [rank.communicate(timeout=300)[1].decode(errors="replace") for rank in started]
    finally:
        for rank in started:
            rank.kill()
    left = [json.loads(file.read_text()) for file in sorted(out.glob("rank*.json"))]
    return [rank.returncode for rank in started], left, errors


def test_experts_of_one_module_need_no_leaf_whatever_the_routing(tmp_path):
    statuses, left, errors = experts("fused", tmp_path, 120)
    assert statuses == [0, 0], errors
    first, second = left
    assert first["chosen"] != second["chosen"]
    assert first["leaves"] == {}


@pytest.mark.slow
def test_experts_that_are_modules_of_their_own_become_a_leaf(tmp_path):
    statuses, left, errors = experts("apart", tmp_path, 120)
    assert statuses == [0, 0], errors
    first, second = left
    assert (first["chosen"], second["chosen"]) == ([0], [0, 1])
    assert first["leaves"] == second["leaves"] == {"Apart": 1}


@pytest.mark.slow
def test_without_the_leaf_ranks_wait_for_each_other(tmp_path):
    statuses, left, _ = experts("apart-no-leaf", tmp_path, 20)
    assert 0 not in statuses
    assert left == []
