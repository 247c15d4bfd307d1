"""Break the running worker in every way known to have produced a wrong number; some check must catch each.

Every fault has a passing control: the same cell, measured without it, raises no such finding.
"""

import pytest
from forked import planned

pytestmark = pytest.mark.ranks

BUCKETS = {
    "reduce_bucket_size": 400_000,
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_param_persistence_threshold": 0,
}
Z1 = {"strategy": "z1"}
Z1_GAS = {"strategy": "z1", "gradient_accumulation_steps": 2}
Z2 = {"strategy": "z2"}
Z2_GAS = {"strategy": "z2", "gradient_accumulation_steps": 2}
Z3 = {"strategy": "z3"}
DDP = {"strategy": "ddp"}
DDP_GAS = {"strategy": "ddp", "gradient_accumulation_steps": 2}
GPT2 = {"strategy": "ddp", "model": "gpt2-tiny"}
RECOMPUTED = {"strategy": "z1", "activation_checkpointing": True}
# Without what transformers does by itself, a reentrant block whose input requires no gradient trains nothing, silently.
FROZEN_BELOW = {
    "strategy": "z1",
    "activation_checkpointing": "reentrant",
    "finetuning": "freeze",
    "freeze": {"trainable": ["model.layers.1.*", "lm_head*"]},
}

# fault, cell, the check that must catch it, verdict, words that its finding must have
CASES = [
    ("every_rank_reads_the_same_rows", Z2, "parity", "invalid", "loss"),
    ("the_same_batch_in_every_step", Z1, "parity", "invalid", "loss"),
    ("sequences_cut_in_half", Z3, "parity", "invalid", ""),
    ("a_micro_batch_is_lost", Z2_GAS, "parity", "invalid", "gradient norm"),
    ("a_micro_batch_is_lost", DDP_GAS, "parity", "invalid", "gradient norm"),
    ("gradients_are_summed_not_averaged", Z1, "parity", "invalid", "gradient norm"),
    ("gradients_are_summed_not_averaged", Z3, "parity", "invalid", "gradient norm"),
    ("the_gradients_of_some_tensors_are_lost", DDP, "parity", "invalid", "4 of 39 tensors"),
    ("the_gradients_of_some_tensors_are_lost", Z3, "parity", "invalid", "4 of 39 tensors"),
    ("the_gradients_of_some_tensors_have_the_wrong_sign", Z2, "parity", "invalid", "k_proj"),
    ("accumulation_is_divided_twice", Z2_GAS, "parity", "invalid", "gradient norm"),
    ("the_stage_is_another", Z2, "effective settings", "suspect", "asked for zero_stage 2, the engine runs 0"),
    ("the_stage_is_taken_from_the_label", Z2, "sharding", "invalid", "optimizer states"),
    ("parameters_are_not_sharded", Z3, "sharding", "invalid", "parameters"),
    ("clipping_is_off", Z1, "parity", "invalid", "the optimizer applied"),
    ("accumulation_is_ignored", Z1_GAS, "effective settings", "suspect", "gradient_accumulation_steps"),
    ("the_learning_rate_is_another", DDP, "effective settings", "suspect", "lr"),
    ("the_learning_rate_is_another_and_hidden", Z1, "parity", "invalid", "loss"),
    ("one_optimizer_step_is_left_out", DDP, "applied steps", "invalid", "optimizer steps were driven"),
    ("the_optimizer_has_a_past", DDP, "parity", "suspect", "before the first batch"),
    ("the_dtype_is_another", DDP, "effective settings", "suspect", "model_dtype"),
    ("the_weights_are_another_seeds", Z1, "parity", "invalid", "gradient norm"),
    ("dropout_is_on", GPT2, "parity", "invalid", ""),
    ("a_layer_is_frozen", DDP, "parameter count", "suspect", "are trained"),
    ("nothing_is_recomputed", RECOMPUTED, "effective settings", "suspect", "activation_checkpointing"),
    ("inputs_require_no_gradient", FROZEN_BELOW, "parity", "invalid", "gradient norm"),
    ("the_updated_parameters_are_not_gathered", Z1, "parity", "invalid", ""),
    ("one_rank_loses_its_loss", Z1, "finite loss", "invalid", "not finite"),
    ("all_results_are_of_rank_0", Z1, "ranks", "invalid", "results came from"),
    ("timed_steps_are_fed_half", Z1, "ranks", "invalid", "timed steps of 32 tokens"),
    ("a_replica_drifts", DDP, "ranks", "invalid", "different parameters"),
    ("a_replica_drifts", Z2, "ranks", "invalid", "different parameters"),
    ("the_clock_does_not_wait_for_the_device", DDP, "clock", "suspect", "misses"),
    ("traffic_of_the_step_before_is_counted_too", Z1, "traffic", "suspect", ""),
    ("the_smaller_side_of_a_collective_is_counted", Z1, "traffic", "suspect", ""),
    ("a_rank_counts_no_gathers", Z1, "ranks", "suspect", "moved different bytes"),
    ("a_collective_too_many", Z1, "traffic", "suspect", ""),
    ("the_meter_starts_after_the_model", Z1, "memory", "suspect", ""),
    ("the_peak_is_reset_before_it_is_read", DDP, "memory", "suspect", ""),
]


@pytest.fixture(scope="module")
def honest(ranks):
    """Return a function that measures a cell without a fault, once."""
    seen = {}

    def measure(cell):
        if cell.cell_id not in seen:
            seen[cell.cell_id] = ranks.measure(cell)
        return seen[cell.cell_id]

    return measure


def alarms(record, check):
    """What ``check`` found; the clock's findings concern the times alone and stand with them."""
    if check == "clock":
        return [("suspect", reason) for reason in record.timing.suspect_reasons]
    return [(finding.verdict, finding.text) for finding in record.findings if finding.check == check]


@pytest.mark.parametrize(("fault", "settings", "check", "verdict", "words"), CASES)
def test_a_seeded_fault_is_caught_and_its_control_is_not(ranks, honest, fault, settings, check, verdict, words):
    cell = planned(zero_optimization=BUCKETS, **settings)
    control = honest(cell)
    assert control.status == "completed", control.reason
    assert (control.validity, control.findings) == ("valid", []), control.findings
    assert control.timing.suspect_reasons == []
    broken = ranks.measure(cell, fault)
    assert broken.status == "completed", broken.reason
    assert any(found == verdict and words in text for found, text in alarms(broken, check)), broken.findings
    if check != "clock":
        assert broken.validity == verdict or broken.validity == "invalid"


def test_every_fault_is_seeded_at_least_once():
    import ast
    from pathlib import Path

    tree = ast.parse(Path(__file__).with_name("seeded_faults.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    assert names - {"dist_rank"} == {fault for fault, *_ in CASES}
    assert len(names) >= 21
