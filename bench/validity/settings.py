"""What ran against what was asked."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding
from bench.stacks import is_release, releases
from bench.zero.stages import STRATEGIES

_CHECK = "effective settings"


def _asked(cell: Cell) -> dict[str, Any]:
    strategy = STRATEGIES[cell.strategy]
    return {
        "world_size": cell.world_size,
        "dp_world_size": cell.world_size,
        "train_batch_size": cell.train_batch_size,
        "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "zero_stage": strategy.zero_stage,
        "model_dtype": {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[cell.dtype],
        "master_dtype": "float32",
        "gradient_clipping": cell.optimizer.gradient_clipping,
        "optimizer": cell.optimizer.name,
        "lr": cell.optimizer.lr,
        "weight_decay": cell.optimizer.weight_decay,
        "activation_checkpointing": "non-reentrant" if cell.activation_checkpointing else "none",
        "offload_optimizer": False,
        "offload_param": False,
        **cell.zero_optimization,
    }


def differences(cell: Cell, effective: dict[str, Any]) -> list[Finding]:
    """Return a finding for every requested setting that the engine, asked after it was built, does not run.

    A setting that this release keeps nowhere cannot be compared and gives none.
    """
    return [
        Finding(check=_CHECK, verdict="suspect", text=f"asked for {key} {value}, the engine runs {effective[key]}")
        for key, value in _asked(cell).items()
        if key in effective and effective[key] != value and not (effective[key] is None and key != "zero_stage")
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
