"""Cell -> the DeepSpeed configuration that its worker hands to ``deepspeed.initialize``. Pure."""

from typing import Any

from bench.cell import Cell
from bench.zero.stages import STRATEGIES


def ds_config(cell: Cell) -> dict[str, Any]:
    """Return the configuration of a DeepSpeed cell (stages 0 to 3), every key spelled as DeepSpeed spells it.

    Keys that are not set keep DeepSpeed's defaults. The optimizer is not in it: the worker builds
    torch.optim.AdamW itself, so that every strategy, torch DDP too, updates with the same code.
    """
    stage = STRATEGIES[cell.strategy].zero_stage
    if stage is None:
        raise ValueError(f"{cell.strategy} does not run under DeepSpeed")
    # DeepSpeed would refuse to step torch's AdamW on the CPU, for being slower than its own.
    own_optimizer = {"zero_force_ds_cpu_optimizer": False} if cell.offloads_optimizer else {}
    return {
        "train_batch_size": cell.train_batch_size,
        "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "gradient_clipping": cell.optimizer.gradient_clipping,
        "bf16": {"enabled": cell.dtype == "bf16"},
        "fp16": {"enabled": cell.dtype == "fp16"},
        "zero_optimization": {
            "stage": stage,
            # Off by default since 0.16.4 (deepspeedai/DeepSpeed#7039); bench.messages counts the warnings.
            **({"log_trace_cache_warnings": True} if stage == 3 else {}),
            **cell.zero_optimization,
        },
        "zero_allow_untested_optimizer": True,
        **own_optimizer,
        **cell.deepspeed,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }
