"""A row as arguments of transformers' ``TrainingArguments``, which LLaMA-Factory's are too."""

from typing import Any

from bench.cell import Cell
from bench.export.deepspeed import BETAS, EPS


def training_arguments(cell: Cell, device: str) -> dict[str, Any]:
    """Return the arguments by which every tool's trainer takes the same optimizer steps as the row.

    ``adam_*``, ``learning_rate``, ``weight_decay`` and ``max_grad_norm`` stand in the DeepSpeed configuration too, and
    transformers refuses to start unless both agree. ``use_cpu``: without it transformers refuses bf16 on a CPU.
    """
    return {
        "output_dir": "output",
        "max_steps": cell.total_steps,
        "per_device_train_batch_size": cell.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "learning_rate": cell.optimizer.lr,
        "lr_scheduler_type": "constant",
        "weight_decay": cell.optimizer.weight_decay,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "max_grad_norm": cell.optimizer.gradient_clipping,
        "bf16": cell.dtype == "bf16",
        "fp16": cell.dtype == "fp16",
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": "none",
        **({"use_cpu": True} if device == "cpu" else {}),
    }
