"""Which tool gets which files of a row."""

from collections.abc import Callable
from typing import Any

from bench.errors import ScenarioError
from bench.export.accelerate import accelerate_files
from bench.export.deepspeed import deepspeed_json
from bench.export.llamafactory import llamafactory_files
from bench.export.trainer import DEEPSPEED_FILE, trainer_files
from bench.record import Record
from bench.zero.stages import STRATEGIES


def _deepspeed_files(record: Record, model_config: dict[str, Any]) -> dict[str, str]:
    return {DEEPSPEED_FILE: deepspeed_json(record.cell)}


FORMATS: dict[str, Callable[[Record, dict[str, Any]], dict[str, str]]] = {
    "deepspeed": _deepspeed_files,
    "llamafactory": llamafactory_files,
    "accelerate": accelerate_files,
    "trainer": trainer_files,
}


def exported(record: Record, model_config: dict[str, Any], target: str) -> dict[str, str]:
    """Return the files, by name, from which ``target`` (a key of `FORMATS`) trains as the row did.

    ``model_config`` is the content of the model's ``config.json`` (bench.models.catalog).

    Raises:
        ScenarioError: ``target`` cannot express the row.
    """
    if (reason := _why_not(record, target)) is not None:
        raise ScenarioError(f"{record.label} cannot be exported as {target}: {reason}")
    return FORMATS[target](record, model_config)


def _why_not(record: Record, target: str) -> str | None:
    cell = record.cell
    if cell.finetuning != "full" and target != "deepspeed":
        return f"it trains by {cell.finetuning}, and only full training is written; --as deepspeed has no word of it"
    if STRATEGIES[cell.strategy].zero_stage is not None:
        return None
    if cell.strategy == "fsdp2":
        return "fsdp2 runs without DeepSpeed, by torch's fully_shard, which none of the files sets up; take a row of z3"
    if target == "deepspeed":
        return "ddp runs without DeepSpeed; take --as trainer, or a row of z0"
    if cell.dtype != "fp32":
        return (
            f"ddp in {cell.dtype} keeps fp32 masters of {cell.dtype} weights, as DeepSpeed does, where transformers "
            "would autocast fp32 weights; take a row of z0, which has the same recipe, or of ddp in fp32"
        )
    return None
