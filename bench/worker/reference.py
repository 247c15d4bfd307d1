"""What a cell's training should be: plain PyTorch, one process, the same global batches and weights.

No DeepSpeed, no process group, no sharding, no wrapper: low-precision parameters, the gradient of the whole global
batch added up in fp32, clipped by its norm, an fp32 master copy updated by ``torch.optim.AdamW``. Every strategy must
agree with it within rounding (docs/metrics.md has the tolerances).

``python -m bench.worker.reference JOBS``: JOBS is a JSON list that bench.references writes; each entry's result goes
to its own file as soon as it is there.
"""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.cell import Cell
from bench.corpus import check_unchanged
from bench.measure.gradients import signature, squares
from bench.worker.data import row
from bench.worker.model import DTYPES, build_model

# The loss scale where DeepSpeed starts in fp16 (initial_scale_power 16). A power of two changes no mantissa.
_FP16_SCALE = 2.0**16


def _global_gradient(
    cell: Cell, model: nn.Module, vocab_size: int, step: int, device: torch.device
) -> tuple[float, list[torch.Tensor]]:
    """Return the mean loss over the global batch of ``step`` and its gradient, in fp32, one tensor per parameter."""
    params = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p, dtype=torch.float32) for p in params]
    size = cell.train_micro_batch_size_per_gpu
    # As DeepSpeed scales: so an overflow in fp16 is one here too.
    scale = (_FP16_SCALE if cell.dtype == "fp16" else 1.0) / cell.gradient_accumulation_steps
    losses = []
    for first in range(0, cell.train_batch_size, size):
        batch = torch.stack([row(cell, vocab_size, step, first + i) for i in range(size)]).to(device)
        loss = model(input_ids=batch, labels=batch).loss
        (loss * scale).backward()
        losses.append(float(loss.detach()))
        for accumulated, param in zip(total, params, strict=True):
            if param.grad is not None:
                accumulated += param.grad.float()
            param.grad = None
    for accumulated in total:
        accumulated /= scale * len(losses)
    return math.fsum(losses) / len(losses), total


def train(
    cell: Cell, config: dict[str, Any], steps: int, idle_steps: int, device: torch.device
) -> dict[str, list[Any]]:
    """Train ``steps`` optimizer steps; return ``losses``, ``grad_norms`` (before clipping) and ``applied_grad_norms``.

    ``gradients`` are the signatures (bench.measure.gradients) of the first step's, tensor by tensor.
    ``idle_steps`` steps with zero gradients come first: some optimizer wrappers take one when they are built.
    """
    dtype = DTYPES[cell.dtype]
    model = build_model(
        config,
        dtype=dtype,
        device=device,
        seed=cell.seed,
        activation_checkpointing=False,
        attn_implementation=cell.attn_implementation,
        lora=cell.lora,
        freeze=cell.freeze,
        zero3_config=None,
    )
    vocab_size = model.config.get_text_config().vocab_size
    params = [p for p in model.parameters() if p.requires_grad]
    masters = [nn.Parameter(p.detach().clone().float()) for p in params]
    optimizer = torch.optim.AdamW(
        masters, lr=cell.optimizer.lr, weight_decay=cell.optimizer.weight_decay, foreach=False
    )
    for _ in range(idle_steps):
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()
    seen: dict[str, list[Any]] = {"losses": [], "grad_norms": [], "applied_grad_norms": [], "gradients": []}
    for step in range(steps):
        loss, gradient = _global_gradient(cell, model, vocab_size, step, device)
        if step == 0:
            seen["gradients"] = [signature(grad) for grad in gradient]
        norm = math.sqrt(squares(gradient))
        clip = cell.optimizer.gradient_clipping
        factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        for master, grad in zip(masters, gradient, strict=True):
            master.grad = grad * factor
        optimizer.step()
        with torch.no_grad():
            for param, master in zip(params, masters, strict=True):
                param.copy_(master)
        seen["losses"].append(loss)
        seen["grad_norms"].append(norm)
        seen["applied_grad_norms"].append(norm * factor)
    return seen


def main(path: Path) -> None:
    """Run every job of the list; one that fails leaves its reason in its file, and the next one begins."""
    # Torch reads the variable on import; a forked process has the torch that its agent imported, with its value.
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads.split(",")[0]))
    for job in json.loads(path.read_text()):
        out = Path(job["out"])
        try:
            cell = Cell.model_validate(job["cell"])
            check_unchanged(cell.data.path, job.get("corpus"))
            device = torch.device(job["device"])
            torch.manual_seed(cell.seed)
            result: dict[str, Any] = train(cell, job["model_config"], job["steps"], job["idle_steps"], device)
        except Exception as error:  # whatever it is, the rows are unchecked for this reason
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
        part = out.with_name(out.name + ".part")
        part.write_text(json.dumps(result))
        part.replace(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
