"""What the rows of one training say about each other and about the reference."""

from typing import Any

import pytest

from bench.analysis.witnesses import witnesses
from bench.cell import Cell
from bench.record import Finding, Parity, Record

NO_REFERENCE = "loss and gradients were not compared with a reference run: too large"
SKIPPED = "optimizer steps were skipped early, so loss and gradients have no counterpart to be compared with"


def row(strategy: str, loss: float = 7.0, *, unchecked: str | None = None, wrong: bool = False) -> Record:
    """Return a row with ``loss`` at its first step; ``unchecked`` says why no reference stands beside it."""
    cell = Cell(model="llama-tiny", strategy=strategy, world_size=2)
    reference: list[Any] = [] if unchecked else [7.5 if wrong else loss]
    parity = Parity(
        reference=None if unchecked else "abc",
        losses=[loss],
        reference_losses=reference,
        grad_norms=[1.5],
        reference_grad_norms=[],
        applied_grad_norms=[1.0],
        reference_applied_grad_norms=[],
        loss_tolerance=5e-3,
        grad_norm_tolerance=3e-2,
        worst_loss_difference=None,
        worst_grad_norm_difference=None,
        worst_applied_grad_norm_difference=None,
    )
    findings = [Finding(check="parity", verdict="unchecked", text=unchecked)] if unchecked else []
    findings += [Finding(check="parity", verdict="invalid", text="does not train like plain PyTorch")] if wrong else []
    return Record(
        cell_id=cell.cell_id,
        repeat=0,
        label=cell.label,
        cell=cell,
        train_batch_size=cell.train_batch_size,
        num_params=315_968,
        status="completed",
        findings=findings,
        device="cpu",
        parity=parity,
    )


@pytest.mark.parametrize("strategies", [("ddp", "z0", "z1", "z3"), ("ddp", "z0"), ("z1", "z3"), ("ddp",)])
def test_nothing_is_said_when_all_agree_with_the_reference(strategies: tuple[str, ...]) -> None:
    assert witnesses(row(strategy) for strategy in strategies) == []


def test_a_reference_that_stands_alone_is_named() -> None:
    (said,) = witnesses([row("ddp", wrong=True), row("z0", wrong=True), row("z1", wrong=True)])
    assert said.startswith("ddp and z0 agree with each other and not with the reference run: suspect the reference")


def test_one_row_that_stands_alone_is_its_own_findings_matter() -> None:
    assert witnesses([row("ddp"), row("z0"), row("z1", 6.0, wrong=True)]) == []


def test_of_unchecked_rows_the_one_that_deviates_is_named() -> None:
    rows = [row(strategy, unchecked=NO_REFERENCE) for strategy in ("ddp", "z0", "z2")]
    odd = row("z3", 6.0, unchecked=NO_REFERENCE)
    deviates, agrees = witnesses([*rows, odd])
    assert deviates == (
        "ddp and z0 agree with each other in the first step, and these rows, which no reference run checked, do not: "
        f"{odd.label} ({NO_REFERENCE})."
    )
    assert agrees == (
        f"In the first step ddp and z0 and 1 further row agree, which no reference run checked ({NO_REFERENCE})."
    )


def test_of_two_repeats_the_one_that_deviates_is_named() -> None:
    repeats = [row("z3", loss, unchecked=NO_REFERENCE) for loss in (6.0, 7.0)]
    deviates, _ = witnesses([row("ddp"), row("z0"), *repeats])
    assert repeats[0].label in deviates


def test_a_row_is_unchecked_for_its_own_reason_also_where_a_reference_ran() -> None:
    (said,) = witnesses([row("ddp"), row("z0"), row("z3"), row("z1", unchecked=SKIPPED)])
    assert said == (
        f"In the first step ddp and z0 and 1 further row agree, which no reference run checked ({SKIPPED})."
    )


def test_unchecked_witnesses_alone_are_no_further_rows() -> None:
    assert witnesses([row("ddp"), row("z0", unchecked=SKIPPED), row("z1")]) == []
    assert witnesses([row("ddp", unchecked=NO_REFERENCE), row("z0", unchecked=NO_REFERENCE)]) == []


def test_witnesses_that_contradict_each_other_testify_nothing() -> None:
    rows = [row("ddp", unchecked=NO_REFERENCE), row("z0", 6.0, unchecked=NO_REFERENCE)]
    assert witnesses([*rows, row("z1", 5.0, unchecked=NO_REFERENCE)]) == []
