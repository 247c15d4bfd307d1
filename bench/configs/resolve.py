"""A configuration as given + what it is to run with -> every value explicit, each with the sentence that explains it.

Read from DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py) and transformers 5.24
(integrations/deepspeed.py); docs/configs.md lists the rules.
"""

import re
from dataclasses import dataclass
from typing import Any

from bench.configs.batch import batch
from bench.configs.features import check_top_level, passed_on, set_aside, unsupported
from bench.configs.optimizer import optimizer
from bench.configs.parse import check_filled_in
from bench.configs.precision import precision
from bench.configs.read import ConfigFile
from bench.configs.zero import Section, zero_section
from bench.errors import ScenarioError

_DTYPE_NAMES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}


@dataclass(frozen=True)
class Context:
    """What ``auto`` is resolved from. ``None``: the scenario does not ask for it.

    ``hidden_size`` is the model's, taken where transformers takes it; ``deepspeed`` the installed release.
    """

    hidden_size: int | None
    world_size: int
    dtype: str | None
    train_micro_batch_size_per_gpu: int | None
    gradient_accumulation_steps: int | None
    train_batch_size: int | None
    lr: float
    weight_decay: float
    gradient_clipping: float
    deepspeed: str


@dataclass(frozen=True)
class Resolved:
    """A configuration with nothing left open.

    ``zero_optimization`` is without ``stage`` (it is the strategy's); ``deepspeed`` are other top-level keys to pass
    on; ``settings`` are dtype and the batch triple; ``optimizer`` is lr, weight_decay, gradient_clipping, and betas
    and eps where the file gives them. ``impossible``: why no cell can run it.
    """

    strategy: str
    zero_optimization: dict[str, Any]
    deepspeed: dict[str, Any]
    settings: dict[str, Any]
    optimizer: dict[str, Any]
    notes: tuple[str, ...]
    impossible: str | None


def resolve(config: ConfigFile, context: Context) -> Resolved:
    """Resolve a configuration for one point of the matrix.

    Raises:
        ScenarioError: a key or value is wrong, or an ``auto`` cannot be resolved. All unresolved keys are named.
    """
    try:
        check_filled_in("", config.content)
        return _resolve(config, context)
    except ValueError as error:
        raise ScenarioError(f"{config.source}: {error}") from None


def _resolve(config: ConfigFile, context: Context) -> Resolved:
    content, beside = config.content, config.settings
    check_top_level(content)
    release = tuple(map(int, re.findall(r"\d+", context.deepspeed)[:3]))
    zero = zero_section(content, context.hidden_size)
    chosen = precision(content, beside.get("dtype"), context.dtype)
    asked = {
        "train_batch_size": context.train_batch_size,
        "train_micro_batch_size_per_gpu": context.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": context.gradient_accumulation_steps,
    }
    notes = [*config.notes, *zero.notes, *chosen.notes]
    sizes, impossible = batch(content, beside, asked, context.world_size, notes)
    rates = {
        "lr": context.lr,
        "weight_decay": context.weight_decay,
        "gradient_clipping": context.gradient_clipping,
    }
    update = optimizer(content, beside, rates)
    notes += update.notes
    unresolved = [*zero.unresolved, *update.unresolved]
    passed = passed_on(content, unresolved)
    if unresolved:
        raise ValueError(_unresolved(unresolved, context))
    reasons = [zero.impossible, chosen.impossible, update.impossible, *unsupported(content, release, notes), impossible]
    reasons += [_hpz(zero, context.world_size), _dtype_at_stage(zero.stage, chosen.dtype, passed, release, notes)]
    if release >= (0, 19, 8):
        passed.pop("sparse_gradients", None)
    if chosen.section:
        passed[chosen.dtype] = chosen.section
    return Resolved(
        strategy=f"z{zero.stage}",
        zero_optimization=dict(sorted(zero.keys.items())),
        deepspeed=passed,
        settings={"dtype": chosen.dtype, **sizes},
        optimizer=update.values,
        notes=tuple(dict.fromkeys(notes + set_aside(content))),
        impossible=next((reason for reason in reasons if reason), None),
    )


def _hpz(zero: Section, world_size: int) -> str | None:
    """DeepSpeed makes world_size // size groups and leaves the ranks beyond them without one (utils/groups.py)."""
    size = zero.keys.get("zero_hpz_partition_size", 1)
    if zero.stage != 3 or size <= 1 or world_size % size == 0:
        return None
    return f"zero_hpz_partition_size {size} does not divide world_size {world_size}"


def _unresolved(keys: list[str], context: Context) -> str:
    size = " (the model's hidden size is unknown)" if context.hidden_size is None else ""
    return f"'auto' cannot be resolved here{size}: {', '.join(keys)}; write the values into the file"


def _dtype_at_stage(
    stage: int, dtype: str, passed: dict[str, Any], release: tuple[int, ...], notes: list[str]
) -> str | None:
    """Say what stage 0 does in bf16, and which accumulation it refuses (_do_optimizer_sanity_check)."""
    if stage != 0:
        return None
    if dtype == "bf16":
        here = (0, 7, 5) <= release < (0, 17, 6)
        notes.append(
            "bf16 at stage 0: DeepSpeed 0.7.5 to 0.17.5 run BF16_Optimizer there, which shards the optimizer states"
            + ("; this release is one of them" if here else "; this release does not (deepspeedai/DeepSpeed#7515)")
        )
    accumulate = passed.get("data_types", {}).get("grad_accum_dtype")
    accumulate = _DTYPE_NAMES.get(accumulate, accumulate)
    if accumulate not in (None, dtype) and (release >= (0, 17, 6) or dtype != "bf16"):
        return f"data_types.grad_accum_dtype {accumulate} with {dtype} needs stage 1, 2 or 3"
    return None
