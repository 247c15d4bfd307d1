"""What ran against what was asked."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding
from bench.stacks import is_release, releases
from bench.zero.applicability import why_ignored
from bench.zero.stages import STRATEGIES
from bench.zero.theory import TORCH_DTYPE

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
        "model_dtype": TORCH_DTYPE[cell.dtype],
        "master_dtype": "float32",
        "gradient_clipping": cell.optimizer.gradient_clipping,
        "optimizer": cell.optimizer.name,
        "lr": cell.optimizer.lr,
        "weight_decay": cell.optimizer.weight_decay,
        "optimizer_implementation": cell.optimizer.implementation,
        **({"experts_implementation": cell.experts_implementation} if cell.experts_implementation else {}),
        **({"attn_implementation": cell.attn_implementation} if cell.attn_implementation else {}),
        "activation_checkpointing": cell.checkpointing,
        "finetuning": cell.finetuning,
        **_adapters(cell),
        "offload_optimizer": cell.offloads_optimizer,
        "offload_param": cell.offloads_param,
        **_zero(cell.zero_optimization),
    }


def _adapters(cell: Cell) -> dict[str, Any]:
    if cell.lora is None:
        return {}
    return {"lora_r": cell.lora.r, "lora_alpha": float(cell.lora.lora_alpha), "lora_dropout": cell.lora.lora_dropout}


def _zero(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out what DeepSpeed sets itself: gathering one by one makes the prefetch bucket 1 (runtime/engine.py)."""
    given_up = {"stage3_prefetch_bucket_size"} if settings.get("stage3_allgather_sequential") else set()
    return {key: value for key, value in settings.items() if key not in given_up and not isinstance(value, dict)}


def differences(cell: Cell, effective: dict[str, Any]) -> list[Finding]:
    """Return a finding for every requested setting that the engine, asked after it was built, does not run.

    A setting that this release keeps nowhere cannot be compared: of ``zero_optimization``, where it has an effect, a
    note says so.
    """
    differing = [
        Finding(check=_CHECK, verdict="suspect", text=f"asked for {key} {value}, the engine runs {effective[key]}")
        for key, value in _asked(cell).items()
        if key in effective and effective[key] != value and not (effective[key] is None and key != "zero_stage")
    ]
    return differing + [
        Finding(
            check=_CHECK,
            verdict="note",
            text=f"asked for {key} {value}; this release keeps it nowhere that can be read back",
        )
        for key, value in cell.zero_optimization.items()
        if key not in effective and not isinstance(value, dict) and why_ignored(key, cell.strategy) is None
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
