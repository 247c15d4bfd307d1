"""Loss and gradient norm beside those of the reference run: is this the training that was asked for?"""

import math
from typing import Any

from bench.cell import COUNTED_STEPS, SETTLING_STEPS, Cell
from bench.record import Finding, Parity

# Relative; several times the largest of 200 honest differences (docs/metrics.md, "Parity", has them and the command).
LOSS_TOLERANCE = {"fp32": 2e-5, "bf16": 3e-3, "fp16": 3e-3}
GRAD_NORM_TOLERANCE = {"fp32": 5e-4, "bf16": 1.5e-2, "fp16": 1.5e-2}

# Tensor by tensor, relative to the reference's norm of the tensor, on top of a share of the global norm.
TENSOR_TOLERANCE = {"fp32": 1e-3, "bf16": 0.05, "fp16": 0.05}
TENSOR_FLOOR = 1e-4

# Above this learning rate a rounding difference grows with every step: only the first step is then compared.
HIGH_LR = 0.01

_CHECK = "parity"


def applied_grad_norms(ranks: list[dict[str, Any]], trained: int) -> list[float]:
    """Return the norm of the gradient that the optimizers of all ranks together applied, per step.

    Where every rank applied the whole gradient, the squares of N ranks are N times those of one.
    """
    norms = []
    for seen in zip(*(rank["applied"] for rank in ranks), strict=True):
        copies = max(1, round(sum(one["num_elements"] for one in seen) / trained))
        norms.append(math.sqrt(sum(one["squares"] for one in seen) / copies))
    return norms


def _finite(values: list[float | None]) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def worst(mine: list[float | None], reference: list[float | None]) -> float | None:
    """Return the largest relative difference of two series, step by step; ``None`` if no step has both."""
    pairs = [(a, b) for a, b in zip(mine, reference, strict=False) if a is not None and b is not None]
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in pairs), default=None)


def _where(mine: list[float | None], reference: list[float | None], tolerance: float) -> str:
    """Say at which step two series part, and by how much."""
    for step, (a, b) in enumerate(zip(mine, reference, strict=False), start=1):
        if b is None:
            continue
        if a is None:
            return f"not a finite number at step {step}, the reference has {b:.6g}"
        if abs(a - b) > tolerance * abs(b):
            part = (a - b) / max(abs(b), 1e-12)
            return f"{a:.6g} at step {step}, the reference has {b:.6g} ({part:+.1%}, tolerance {tolerance:.1%})"
    return ""


def _counterpart(idle: int, result: dict[str, Any], references: dict[int, dict[str, Any]]) -> Finding | None:
    """Return why the run cannot be compared, ``None`` when it can."""
    if any(rank["skipped_in_counting"] for rank in result["ranks"]):
        text = "optimizer steps were skipped early, so loss and gradients have no counterpart to be compared with"
        return Finding(check=_CHECK, verdict="unchecked", text=text)
    if dropout := result["effective"].get("dropout"):
        text = (
            f"the model has dropout {dropout:g}: ranks draw other random numbers than one process, nothing to compare"
        )
        return Finding(check=_CHECK, verdict="unchecked", text=text)
    if idle not in references:
        text = f"the optimizer had taken {idle} steps before the first batch, and no reference run does the same"
        return Finding(check=_CHECK, verdict="suspect", affects="training", text=text)
    if "error" in references[idle]:
        text = f"loss and gradients were not compared with a reference run: {references[idle]['error']}"
        return Finding(check=_CHECK, verdict="unchecked", text=text)
    return None


def _tensors(cell: Cell, result: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Say which tensors have another gradient in the first step, where the engine could be asked for them."""
    mine, theirs = result["ranks"][0]["gradients"], reference["gradients"]
    if mine is None:
        return []
    if len(mine) != len(theirs):
        return [f"{len(mine)} tensors have a gradient, {len(theirs)} in the reference"]
    tolerance, floor = TENSOR_TOLERANCE[cell.dtype], TENSOR_FLOOR * reference["grad_norms"][0]
    odd = [
        (name, a, b)
        for name, a, b in zip(result["tensor_names"], mine, theirs, strict=True)
        if not all(abs(x - y) <= tolerance * b[0] + floor for x, y in zip(a, b, strict=True))
    ]
    if not odd:
        return []
    name, a, b = odd[0]
    return [
        f"gradient of {len(odd)} of {len(mine)} tensors at step 1, the first is {name} (norm {a[0]:.4g}, the reference "
        f"has {b[0]:.4g}; product with a fixed vector {a[1]:.4g} and {b[1]:.4g})"
    ]


def _wrong(cell: Cell, result: dict[str, Any], mine: Parity) -> list[str]:
    """Say, most telling first, where loss and norms part from the reference by more than rounding."""
    found = [("loss", mine.losses, mine.reference_losses, mine.loss_tolerance)]
    for number, rank in enumerate(result["ranks"]):
        norms = _finite(rank["grad_norms"])
        # An engine that reports no norm at any step is judged by what it applies.
        if any(norm is not None for norm in rank["grad_norms"]):
            found.append(
                (f"gradient norm on rank {number}", norms, mine.reference_grad_norms, mine.grad_norm_tolerance)
            )
    applied = (mine.applied_grad_norms, mine.reference_applied_grad_norms, mine.grad_norm_tolerance)
    found.append(("norm of the gradient that the optimizer applied", *applied))
    steps = 1 if cell.optimizer.lr > HIGH_LR else None
    return [f"{name} {text}" for name, a, b, tolerance in found if (text := _where(a[:steps], b[:steps], tolerance))]


def compare(
    cell: Cell, result: dict[str, Any], losses: list[float | None], references: dict[int, dict[str, Any]]
) -> tuple[Parity, list[Finding]]:
    """Return loss and gradient norms beside the reference's, and what is wrong with them.

    ``references`` holds the reference runs by the number of idle optimizer steps at their start.
    """
    idle = int(result["effective"].get("optimizer_steps_at_start", 0))
    obstacle = _counterpart(idle, result, references)
    reference = {} if obstacle else references[idle]
    plain, norms, applied = (reference.get(name, []) for name in ("losses", "grad_norms", "applied_grad_norms"))
    mine = losses[: SETTLING_STEPS + COUNTED_STEPS]
    own_norms = _finite(result["ranks"][0]["grad_norms"])
    trained = result["effective"].get("num_trainable_params", result["num_params"])
    own_applied: list[float | None] = [*applied_grad_norms(result["ranks"], trained)]
    parity = Parity(
        reference=reference.get("key"),
        losses=mine,
        reference_losses=plain,
        grad_norms=own_norms,
        reference_grad_norms=norms[:SETTLING_STEPS],
        applied_grad_norms=own_applied,
        reference_applied_grad_norms=applied[:SETTLING_STEPS],
        loss_tolerance=LOSS_TOLERANCE[cell.dtype],
        grad_norm_tolerance=GRAD_NORM_TOLERANCE[cell.dtype],
        worst_loss_difference=worst(mine, plain),
        worst_grad_norm_difference=worst(own_norms, norms),
        worst_applied_grad_norm_difference=worst(own_applied, applied),
    )
    if obstacle:
        return parity, [obstacle]
    if wrong := _wrong(cell, result, parity) or _tensors(cell, result, reference):
        # The first two say enough: the rest follows from them.
        text = f"does not train like plain PyTorch on the same batches: {'; '.join(wrong[:2])}"
        return parity, [Finding(check=_CHECK, verdict="invalid", text=text)]
    found = _odd_start(idle, losses, references)
    if result["ranks"][0]["gradients"] is None:
        text = "gradients were not compared tensor by tensor: fp16, or a release that does not give them"
        found.append(Finding(check=_CHECK, verdict="note", text=text))
    return parity, found


def _odd_start(idle: int, losses: list[float | None], references: dict[int, dict[str, Any]]) -> list[Finding]:
    """Say of a run that agrees with a reference of its own kind how far both are from what was asked."""
    if idle == 0:
        return []
    plain = references.get(0, {}).get("losses", [])
    apart = worst(losses[: len(plain)], plain)
    far = "" if apart is None else f"; its loss is up to {apart:.2%} from plain AdamW's in the first {len(plain)} steps"
    text = (
        f"AdamW had taken {idle} step{'s' if idle > 1 else ''} with zero gradients before the first batch, so its "
        f"first updates are smaller than was asked; it agrees with a reference that does the same{far}"
    )
    return [Finding(check=_CHECK, verdict="suspect", affects="training", text=text)]
