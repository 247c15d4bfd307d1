import math
from typing import Any

import pytest

from bench.cell import Cell
from bench.validity.parity import GRAD_NORM_TOLERANCE, LOSS_TOLERANCE, applied_grad_norms, compare

LOSSES = [6.9, 6.8, 6.7, 6.6, 6.5]
NORMS = [1.7, 1.6, 0.5]
APPLIED = [1.0, 1.0, 0.5]
REFERENCE: dict[str, Any] = {
    "key": "abc",
    "losses": LOSSES,
    "grad_norms": [*NORMS, 0.4, 0.4],
    "applied_grad_norms": [*APPLIED, 0.4, 0.4],
    "gradients": [[1.6, 0.9], [0.01, -0.002]],
}


def result(norms: list[Any] = NORMS, applied: list[float] = APPLIED, copies: int = 1, **changes: Any) -> dict[str, Any]:
    """Two ranks that share (``copies`` 1) or each hold (2) a gradient of 1000 elements."""
    each = [{"squares": norm**2 * copies / 2, "num_elements": 500 * copies} for norm in applied]
    rank = {"grad_norms": norms, "applied": each, "skipped_in_counting": 0, "gradients": REFERENCE["gradients"]}
    return {
        "num_params": 1000,
        "tensor_names": ["embed", "k_proj"],
        "effective": {"optimizer_steps_at_start": 0},
        "ranks": [rank, rank],
    } | changes


def judged(left: dict[str, Any], losses: list[float | None], references: Any = None) -> list[tuple[str, str, str]]:
    _, findings = compare(Cell(model="llama-tiny", strategy="z1"), left, losses, references or {0: REFERENCE})
    return [(finding.verdict, finding.affects, finding.text) for finding in findings]


@pytest.mark.parametrize("copies", [1, 2])
def test_the_applied_norm_is_the_same_however_the_gradient_is_spread(copies: int) -> None:
    norms = applied_grad_norms(result(copies=copies)["ranks"], 1000)
    assert norms == pytest.approx(APPLIED)


def test_padding_does_not_make_a_second_copy() -> None:
    ranks = [{"applied": [{"squares": 0.5, "num_elements": 520}]}] * 2
    assert applied_grad_norms(ranks, 1000) == [pytest.approx(1.0)]


def test_agreement_within_rounding_is_no_finding() -> None:
    near: list[float | None] = [loss * (1 + 0.9 * LOSS_TOLERANCE["bf16"]) for loss in LOSSES]
    assert judged(result(), near) == []
    assert judged(result(norms=[norm * (1 - 0.9 * GRAD_NORM_TOLERANCE["bf16"]) for norm in NORMS]), [*LOSSES]) == []


@pytest.mark.parametrize("step", [0, 4])
def test_one_step_beyond_the_tolerance_is_invalid_and_named(step: int) -> None:
    losses: list[float | None] = [*LOSSES]
    losses[step] = LOSSES[step] * 1.02
    ((verdict, affects, text),) = judged(result(), losses)
    assert (verdict, affects) == ("invalid", "figures")
    assert f"loss {losses[step]:.6g} at step {step + 1}, the reference has {LOSSES[step]:.6g} (+2.0%" in text


def test_the_release_fault_of_stage_2_is_seen_in_the_first_gradient_norm() -> None:
    # deepspeed 0.18.0, stage 2, two micro-steps: 0.893 where the true norm is 1.315 (deepspeedai/DeepSpeed#7718)
    reference = REFERENCE | {"grad_norms": [1.315, *REFERENCE["grad_norms"][1:]]}
    ((verdict, _, text),) = judged(result(norms=[0.893, *NORMS[1:]]), [*LOSSES], {0: reference})
    assert verdict == "invalid"
    assert "gradient norm on rank 0 0.893 at step 1, the reference has 1.315 (-32.1%" in text


def test_a_norm_that_is_right_but_not_applied_is_caught() -> None:
    ((verdict, _, text),) = judged(result(applied=[1.7, 1.6, 0.5]), [*LOSSES])
    assert verdict == "invalid"
    assert "norm of the gradient that the optimizer applied 1.7 at step 1, the reference has 1" in text


@pytest.mark.parametrize("norms", [[None] * 3, [None, 1.6, 0.5], [math.nan, 1.6, 0.5]])
def test_no_norm_at_any_step_is_no_fault_but_a_missing_or_infinite_one_is(norms: list[Any]) -> None:
    assert bool(judged(result(norms=norms), [*LOSSES])) == (norms != [None] * 3)


def test_a_rank_that_reports_a_local_norm_is_caught() -> None:
    left = result()
    left["ranks"] = [left["ranks"][0], left["ranks"][1] | {"grad_norms": [2.5, 1.6, 0.5]}]
    ((_, _, text),) = judged(left, [*LOSSES])
    assert "gradient norm on rank 1 2.5 at step 1" in text


def test_without_a_reference_the_row_is_unchecked_with_the_reason() -> None:
    ((verdict, _, text),) = judged(result(), [*LOSSES], {0: {"key": "abc", "error": "one process would need 900 GiB"}})
    assert (verdict, text.endswith("900 GiB")) == ("unchecked", True)


def test_steps_skipped_early_leave_nothing_to_compare() -> None:
    left = result()
    left["ranks"] = [left["ranks"][0], left["ranks"][1] | {"skipped_in_counting": 1}]
    assert [verdict for verdict, _, _ in judged(left, [1.0] * 5)] == ["unchecked"]


def test_an_idle_first_step_is_named_and_compared_with_its_like() -> None:
    idle = REFERENCE | {"losses": [loss + 0.1 for loss in LOSSES]}
    left = result(effective={"optimizer_steps_at_start": 1})
    ((verdict, affects, text),) = judged(left, [*idle["losses"]], {0: REFERENCE, 1: idle})
    assert (verdict, affects) == ("suspect", "training")
    assert "1 step with zero gradients" in text
    assert "1.54% from plain AdamW's" in text
    ((verdict, affects, _),) = judged(left, [*LOSSES], {0: REFERENCE, 1: idle})
    assert (verdict, affects) == ("invalid", "figures")


def test_an_optimizer_with_a_past_that_no_reference_has_is_suspect() -> None:
    ((verdict, _, text),) = judged(result(effective={"optimizer_steps_at_start": 7}), [*LOSSES])
    assert (verdict, "7 steps before the first batch" in text) == ("suspect", True)


@pytest.mark.parametrize("signature", [[0.0, 0.0], [0.01, 0.002], [0.02, -0.004]])
def test_a_tensor_too_small_for_the_norms_is_seen_by_itself(signature: list[float]) -> None:
    left = result()
    left["ranks"] = [left["ranks"][0] | {"gradients": [[1.6, 0.9], signature]}, left["ranks"][1]]
    ((verdict, _, text),) = judged(left, [*LOSSES])
    assert verdict == "invalid"
    assert "gradient of 1 of 2 tensors at step 1, the first is k_proj (norm " in text


def test_rounding_of_a_tensor_is_no_finding_and_none_given_is_a_note() -> None:
    left = result()
    left["ranks"] = [left["ranks"][0] | {"gradients": [[1.61, 0.91], [0.0102, -0.0022]]}, left["ranks"][1]]
    assert judged(left, [*LOSSES]) == []
    left["ranks"] = [left["ranks"][0] | {"gradients": None}, left["ranks"][1]]
    assert [verdict for verdict, _, _ in judged(left, [*LOSSES])] == ["note"]


def test_a_high_learning_rate_leaves_the_first_step_to_compare() -> None:
    wild = Cell(model="llama-tiny", strategy="z1", optimizer={"lr": 0.1})
    losses: list[float | None] = [*LOSSES[:1], *(loss * 1.1 for loss in LOSSES[1:])]
    assert compare(wild, result(), losses, {0: REFERENCE})[1] == []
    first: list[float | None] = [LOSSES[0] * 1.1, *LOSSES[1:]]
    assert [finding.verdict for finding in compare(wild, result(), first, {0: REFERENCE})[1]] == ["invalid"]


def test_dropout_leaves_nothing_to_compare() -> None:
    left = result(effective={"optimizer_steps_at_start": 0, "dropout": 0.1})
    ((verdict, _, text),) = judged(left, [1.0] * 5)
    assert (verdict, "dropout 0.1" in text) == ("unchecked", True)
