"""A file -> the configurations in it: DeepSpeed's own JSON, accelerate's YAML, a trainer's arguments."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.configs.accelerate import from_accelerate, is_accelerate
from bench.configs.keys import TOP_LEVEL
from bench.configs.parse import check_filled_in, read_mapping
from bench.configs.trainer import from_trainer, is_trainer
from bench.configs.translated import Translated
from bench.configs.values import whole
from bench.errors import ScenarioError

ALL_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class ConfigFile:
    """One DeepSpeed configuration as given, ``auto`` kept.

    ``name`` is the file's stem, with ``-stage2`` where a list of stages was expanded; ``source`` its base name, for
    messages (followed by that of the DeepSpeed file that it points to); ``settings`` what the file around the
    configuration says besides: dtype, train_micro_batch_size_per_gpu, gradient_accumulation_steps, gradient_clipping,
    lr, weight_decay, activation_checkpointing (none, reentrant, non-reentrant), seq_length, model, world_size,
    num_nodes, finetuning; only those that it says.
    """

    name: str
    source: str
    content: dict[str, Any]
    settings: dict[str, Any]
    notes: tuple[str, ...]


def read_configs(path: Path) -> list[ConfigFile]:
    """Read a file. A list of stages, as DeepSpeed's autotuner takes it, makes one configuration per stage.

    Raises:
        ScenarioError: the file cannot be read, or is no DeepSpeed configuration; naming the file and the key.
    """
    data = read_mapping(path)
    try:
        if is_accelerate(data):
            found = from_accelerate(path, data)
        elif is_trainer(data):
            found = from_trainer(path, data)
        else:
            found = _from_deepspeed(data)
        check_filled_in("", found.content)
        check_filled_in("", found.settings)
        configs = _expanded(path, found)
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return configs


def _from_deepspeed(data: dict[str, Any]) -> Translated:
    if data and not TOP_LEVEL & data.keys():
        names = ", ".join(sorted(map(str, data))[:3])
        raise ValueError(
            f"no DeepSpeed configuration: none of its keys is DeepSpeed's ({names}, ...), nor is it a file of "
            "accelerate (distributed_type) or of a trainer (deepspeed)"
        )
    return Translated(dict(data))


def _expanded(path: Path, found: Translated) -> list[ConfigFile]:
    source = f"{path.name}: {found.file}" if found.file else path.name
    one = ConfigFile(path.stem, source, found.content, found.settings, tuple(found.notes))
    section = found.content.get("zero_optimization")
    stages = section.get("stage") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not (isinstance(stages, list) or stages == "all"):
        return [one]
    if stages == "all" or (isinstance(stages, list) and "all" in stages):  # DeepSpeed's autotuner has this word
        stages = list(ALL_STAGES)
    stages = [whole("zero_optimization.stage", stage) for stage in stages]
    if not stages or len(set(stages)) < len(stages) or max(stages) > 3:
        raise ValueError("'zero_optimization.stage' as a list takes each of 0, 1, 2, 3 at most once, and at least one")
    return [
        replace(
            one,
            name=f"{path.stem}-stage{stage}",
            content=found.content | {"zero_optimization": section | {"stage": stage}},
            notes=(*one.notes, f"stage is a list: one configuration for each of {', '.join(map(str, stages))}"),
        )
        for stage in stages
    ]
