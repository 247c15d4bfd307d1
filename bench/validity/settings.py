"""What ran against what was asked."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding
from bench.stacks import is_release, releases
from bench.zero.stages import STRATEGIES


def differences(cell: Cell, effective: dict[str, Any]) -> list[Finding]:
    """Return a finding for every requested setting that the engine, asked after it was built, does not run."""
    asked = {
        "world_size": cell.world_size,
        "train_batch_size": cell.train_batch_size,
        "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "zero_stage": STRATEGIES[cell.strategy].zero_stage,
        "model_dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[cell.dtype],
    }
    return [
        Finding(
            check="effective settings",
            verdict="suspect",
            text=f"asked for {key} {value}, the engine runs {effective[key]}",
        )
        for key, value in asked.items()
        if key in effective and effective[key] != value
    ]


def other_releases(requested: str | None, stack: dict[str, str]) -> list[Finding]:
    """Return a finding for every package whose requested release is not the one that the ranks imported."""
    return [
        Finding(
            check="requested stack",
            verdict="suspect",
            text=f"asked for {package} {version}, the ranks ran {stack.get(package)}",
        )
        for package, version in releases(requested).items()
        if not is_release(stack.get(package, ""), version)
    ]
