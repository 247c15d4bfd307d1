"""What a strategy that a scenario asks for comes to in one cell: a stage, and every key that its configuration sets."""

from dataclasses import dataclass
from typing import Any

from bench.configs.read import ConfigFile
from bench.configs.resolve import Context, resolve
from bench.models.catalog import hidden_size
from bench.scenario import MAX, Scenario
from bench.zero.stages import HPZ, HPZ_KEY, VARIANTS, zero_keys


@dataclass(frozen=True)
class Settled:
    """Fields of a cell, sentences about how they came to be, and why they cannot hold, if they cannot."""

    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    reason: str | None = None


def _shown(value: Any) -> str:
    """Return a value of a ``zero_optimization`` axis as labels have it: ``true``, ``5e8``, ``200000``."""
    if isinstance(value, bool):
        return str(value).lower()
    digits = str(value).rstrip("0")
    zeros = len(str(value)) - len(digits)
    return f"{digits}e{zeros}" if zeros > 5 else str(value)


def named(name: str, knobs: dict[str, Any], axes: frozenset[str], ranks_per_node: int) -> Settled:
    """Settle a strategy of the catalog under ``knobs``, the scenario's ``zero_optimization``.

    A key that cannot matter to the strategy is left out, and one that is the strategy's own is the strategy's.
    ``axes`` are the keys with several values: they become part of the name.
    """
    variant = VARIANTS.get(name)
    base = variant.strategy if variant else name
    own = variant.zero_optimization if variant else {}
    keys = zero_keys(base) | ({HPZ_KEY} if name == HPZ else set())
    chosen = {key: value for key, value in knobs.items() if key in keys and key not in own}
    if name == HPZ:
        chosen.setdefault(HPZ_KEY, ranks_per_node)
    swept = [f"{key}={_shown(chosen[key])}" for key in sorted(axes & chosen.keys())]
    called = "+".join([name, *swept])
    return Settled(
        {
            "strategy": base,
            "name": called if called != base else None,
            "zero_optimization": dict(sorted((chosen | own).items())),
            "deepspeed": variant.deepspeed if variant else {},
        }
    )


def from_file(
    file: ConfigFile, scenario: Scenario, point: dict[str, Any], config: dict[str, Any], deepspeed: str
) -> Settled:
    """Settle a configuration file at one point of the matrix, for the model ``config`` and a release of DeepSpeed.

    What the file fixes comes before what the scenario says; axes that the scenario leaves at their defaults ask for
    nothing.

    Raises:
        ScenarioError: the file is wrong.
    """
    asked = scenario.matrix.model_fields_set
    given = {key: point[key] if key in asked else file.settings.get(key) for key in point}
    searched = given["train_micro_batch_size_per_gpu"] == MAX
    optimizer = {key: file.settings.get(key, getattr(scenario.optimizer, key)) for key in _OPTIMIZER}
    found = resolve(
        file,
        Context(
            hidden_size=hidden_size(config),
            world_size=point["world_size"],
            dtype=given["dtype"],
            # What is searched for later does not matter to the rest of a configuration.
            train_micro_batch_size_per_gpu=1 if searched else given["train_micro_batch_size_per_gpu"],
            gradient_accumulation_steps=given["gradient_accumulation_steps"],
            train_batch_size=given["train_batch_size"],
            deepspeed=deepspeed,
            **optimizer,
        ),
    )
    beside, refused = _said_beside(file, asked)
    settings = {
        **beside,
        **{
            key: value
            for key, value in found.settings.items()
            if value is not None and not (searched and key == "train_micro_batch_size_per_gpu" and value == 1)
        },
        "strategy": found.strategy,
        "name": file.name,
        "zero_optimization": dict(sorted(found.zero_optimization.items())),
        "deepspeed": dict(sorted(found.deepspeed.items())),
        "optimizer": scenario.optimizer.model_copy(
            update={key: float(found.optimizer[key]) for key in _OPTIMIZER if found.optimizer.get(key) is not None}
        ),
    }
    return Settled(settings, (*file.notes, *found.notes), found.impossible or refused)


_CHECKPOINTING: dict[str, bool | str] = {"none": False, "non-reentrant": True, "reentrant": "reentrant"}


def _said_beside(file: ConfigFile, asked: set[str]) -> tuple[dict[str, Any], str | None]:
    """Return the axes that training arguments around the configuration settle, where the scenario leaves them open.

    The reason is set where they ask for a training that cells do not have.
    """
    said = file.settings
    found = {"seq_length": said["seq_length"]} if "seq_length" in said else {}
    if "activation_checkpointing" in said:
        found["activation_checkpointing"] = _CHECKPOINTING[said["activation_checkpointing"]]
    mode, reason = said.get("finetuning"), None
    if mode in ("full", "lora"):
        found["finetuning"] = mode
    elif mode is not None and "finetuning" not in asked:
        reason = f"{file.source} trains by {mode}; cells train by full, lora or freeze: name one in matrix.finetuning"
    return {key: value for key, value in found.items() if key not in asked}, reason


_OPTIMIZER = ("lr", "weight_decay", "gradient_clipping")
