"""Scenario files: what a user asks to have measured. YAML in, frozen pydantic models out."""

import reprlib
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticKnownError

from bench import stacks
from bench.errors import nearest
from bench.hardware import gpu_names, memory_gib
from bench.zero.stages import HPZ_KEY, ZERO_KEYS_ANY_STAGE, ZERO_KEYS_STAGE_3, strategy_names

ZERO_KEYS = ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3 | {HPZ_KEY}


def _one_or_more(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_short = reprlib.Repr()
_short.maxlevel, _short.maxstring = 2, 100


def shown(value: Any) -> str:
    """Return ``value`` for a message, cut short: a few aliases can make it too large for the memory."""
    try:
        return _short.repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a huge number"


def _known_strategy(asked: Any) -> Any:
    if isinstance(asked, ConfigStrategy):
        return asked
    if isinstance(asked, dict):
        if set(asked) != {"config"} or not isinstance(asked["config"], str) or not asked["config"]:
            raise ValueError(f"a strategy from a file is written 'config: path' (got {shown(asked)})")
        return ConfigStrategy(config=asked["config"])
    names = strategy_names()
    if not isinstance(asked, str) or asked not in names:
        hint = nearest(asked, names) if isinstance(asked, str) else ""
        raise ValueError(
            f"unknown strategy {shown(asked)}{hint}; valid: {', '.join(names)}, or 'config: FILE' for a DeepSpeed "
            "configuration"
        )
    return asked


def _known_stack(value: Any) -> str | None:
    try:
        return stacks.parse(value)
    except ValueError as error:
        raise ValueError(f"{error} (got {shown(value)})") from None


def _known_checkpointing(value: Any) -> Any:
    words = {"none": False, "non-reentrant": True, "reentrant": "reentrant"}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value not in words:
        hint = nearest(value, words) if isinstance(value, str) else ""
        raise ValueError(
            f"false (none), true (non-reentrant) or reentrant is needed, written without quotes{hint} "
            f"(got {shown(value)})"
        )
    return words[value]


def _known_zero_keys(section: Any) -> Any:
    problems = []
    for key, value in section.items() if isinstance(section, dict) else ():
        if key == "stage":
            problems.append("'stage' is set by the strategy (z0, z1, z2, z3); remove it here")
        elif key.startswith("offload_"):
            problems.append(f"'{key}': offload is a strategy (z2-offload, z3-offload-param, ...), or 'config: FILE'")
        elif key not in ZERO_KEYS:
            problems.append(
                f"unknown zero_optimization key '{key}'{nearest(key, ZERO_KEYS)}; valid: {', '.join(sorted(ZERO_KEYS))}"
            )
        elif isinstance(value, list) and not value:
            problems.append(f"'{key}': an empty list")
        else:
            problems += [
                f"'{key}' takes true, false or a whole number from 0, or a list of such (got {shown(item)})"
                for item in (value if isinstance(value, list | tuple) else [value])
                if not isinstance(item, bool) and not (isinstance(item, int) and item >= 0)
            ]
    if problems:
        raise ValueError("; ".join(problems))
    if not isinstance(section, dict):
        return section
    return {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}


MAX = "max"


def _micro_batch(value: Any) -> int | str:
    if value == MAX:
        return MAX
    if isinstance(value, str) and not value.isdigit():
        raise ValueError(f"a whole number is needed, or {MAX}{nearest(value, [MAX])} (got {shown(value)})")
    if type(value) is not int:
        raise PydanticKnownError("int_type")
    if value < 1:
        raise PydanticKnownError("greater_than", {"gt": 0})
    return value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ConfigStrategy(_Model):
    """A strategy from a file: a DeepSpeed configuration, or one that holds or names it (bench.configs)."""

    config: str


StrategyItem = Annotated[str | ConfigStrategy, BeforeValidator(_known_strategy)]
Stack = Annotated[str | None, BeforeValidator(_known_stack)]
Dtype = Literal["fp32", "bf16", "fp16"]
Finetuning = Literal["full", "lora", "freeze"]
# True is torch's non-reentrant checkpointing, and False none: as the setting was before it had words.
Checkpointing = Annotated[bool | Literal["reentrant"], BeforeValidator(_known_checkpointing)]
# Not `int | bool`: in strict mode pydantic keeps true apart from 1, which DeepSpeed's keys need.
# A key with several values is an axis of its own.
ZeroOptimization = Annotated[dict[str, bool | int | tuple[bool | int, ...]], BeforeValidator(_known_zero_keys)]


T = TypeVar("T")
Axis = Annotated[tuple[T, ...], BeforeValidator(_one_or_more), Field(min_length=1)]
# max: the largest that fits is searched for, cell by cell (LargestBatch).
MicroBatch = Annotated[Any, BeforeValidator(_micro_batch)]
SeqLength = Annotated[int, Field(ge=2)]  # a sequence of one token has no next token to predict
# auto: measured where this machine has the slots, emulated beyond them.
Mode = Literal["measured", "emulated", "auto"]


class Matrix(_Model):
    """The axes; each takes one value or a list, and the matrix is their product."""

    model: Axis[str]
    strategy: Axis[StrategyItem]
    world_size: Axis[PositiveInt] = (1,)
    num_nodes: Axis[PositiveInt] = (1,)
    train_micro_batch_size_per_gpu: Axis[MicroBatch] = (1,)
    gradient_accumulation_steps: Axis[PositiveInt] | None = None
    train_batch_size: Axis[PositiveInt] | None = None
    seq_length: Axis[SeqLength] = (128,)
    dtype: Axis[Dtype] = ("bf16",)
    activation_checkpointing: Axis[Checkpointing] = (False,)
    finetuning: Axis[Finetuning] = ("full",)
    stack: Axis[Stack] | None = None  # the releases that ranks run with; of no cell's id
    mode: Axis[Mode] = ("measured",)


class Rule(_Model):
    """An exclude or include rule: a part of the matrix, each axis one value or a list."""

    model: Axis[str] | None = None
    strategy: Axis[StrategyItem] | None = None
    world_size: Axis[PositiveInt] | None = None
    num_nodes: Axis[PositiveInt] | None = None
    train_micro_batch_size_per_gpu: Axis[MicroBatch] | None = None
    gradient_accumulation_steps: Axis[PositiveInt] | None = None
    train_batch_size: Axis[PositiveInt] | None = None
    seq_length: Axis[SeqLength] | None = None
    dtype: Axis[Dtype] | None = None
    activation_checkpointing: Axis[Checkpointing] | None = None
    finetuning: Axis[Finetuning] | None = None
    stack: Axis[Stack] | None = None
    mode: Axis[Mode] | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> "Rule":
        if not self.axes():
            raise ValueError("an empty rule would match every cell; name at least one axis")
        return self

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Return the axes that this rule names, with their values."""
        return {name: values for name, values in self if values is not None}


class Data(_Model):
    """Where the tokens come from: ``synthetic`` (seeded random) or ``text`` (UTF-8 bytes as tokens).

    ``path`` is a text file or a folder of them, for ``text``; left out, it is the source code of the
    Python standard library, which every machine has.
    """

    kind: Literal["synthetic", "text"] = "synthetic"
    path: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _path_needs_text(self) -> "Data":
        if self.path is not None and self.kind != "text":
            raise ValueError("'path' is only used with kind: text")
        return self


class Optimizer(_Model):
    """torch.optim.AdamW, the same in every strategy; ``implementation`` is one of the three that PyTorch has of it."""

    name: Literal["AdamW"] = "AdamW"
    implementation: Literal["for-loop", "foreach", "fused"] = "for-loop"
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    gradient_clipping: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_more), Field(min_length=1)]


class Lora(_Model):
    """Adapters of rank ``r`` beside frozen linear layers, in the words of peft's ``LoraConfig``.

    ``target_modules``: names of modules, or ends of names (``q_proj``); ``all-linear`` are all but the output
    embedding.
    """

    r: PositiveInt = 8
    lora_alpha: PositiveInt = 16
    target_modules: Names = ("all-linear",)
    lora_dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _all_linear_stands_alone(self) -> "Lora":
        if "all-linear" in self.target_modules and len(self.target_modules) > 1:
            raise ValueError("target_modules: all-linear stands alone; name the modules instead")
        return self


class Freeze(_Model):
    """Train only the parameters whose names one of the globs matches: ``lm_head*``, ``model.layers.1.*``."""

    trainable: Names


def _known_gpu(name: Any) -> Any:
    if not isinstance(name, str) or memory_gib(name) is None:
        hint = nearest(name, gpu_names()) if isinstance(name, str) else ""
        raise ValueError(f"unknown GPU {shown(name)}{hint}; valid: {', '.join(gpu_names())}")
    return name


def _known_rank(rank: Any) -> int | str:
    if rank in ("first", "middle", "last") or (type(rank) is int and rank >= 0):
        return rank  # type: ignore[no-any-return]
    raise ValueError(f"'first', 'middle', 'last' or a whole number from 0 is needed (got {shown(rank)})")


class Emulation(_Model):
    """What emulated cells emulate. Which rank: a number, or ``first``, ``middle``, ``last`` of each world size.

    ``gpu`` is a name of the catalog (bench/hardware/gpus.yaml), for its memory; ``gpu_memory_gib`` overrides that.
    ``accelerator_path``: whose answers DeepSpeed gets when it asks its accelerator, a CUDA device's or a CPU's.
    """

    rank: Annotated[Any, BeforeValidator(_known_rank)] = "first"
    gpu: Annotated[str, BeforeValidator(_known_gpu)] = "H100 SXM"
    gpu_memory_gib: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None = None
    gpus_per_node: PositiveInt = 8
    accelerator_path: Literal["cuda-like", "cpu"] = "cuda-like"


class LargestBatch(_Model):
    """Where the search of ``train_micro_batch_size_per_gpu: max`` ends: the memory of a GPU, and a size.

    Without ``memory_gib`` it is the device's own, or the emulated GPU's; on CPU, where ranks share what the machine
    has, it must be given.
    """

    memory_gib: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None = None
    at_most: PositiveInt = 4096


class Scenario(_Model):
    """A scenario file: the matrix, and the settings that all its cells share."""

    description: str = ""
    matrix: Matrix
    exclude: tuple[Rule, ...] = Field(default=(), strict=False)
    include: tuple[Rule, ...] = Field(default=(), strict=False)
    repeat: PositiveInt = 1
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    zero_optimization: ZeroOptimization = Field(default={}, validate_default=False)
    lora: Lora = Lora()
    freeze: Freeze | None = None
    experts_implementation: Literal["eager", "batched_mm", "grouped_mm"] | None = None
    attn_implementation: Annotated[str, Field(min_length=1)] | None = None
    emulation: Emulation = Emulation()
    largest_batch: LargestBatch = LargestBatch()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    warmup_steps: PositiveInt = 3
    steps: PositiveInt = 10
    timeout_s: Annotated[PositiveFloat, Field(allow_inf_nan=False)] = 900.0

    @model_validator(mode="after")
    def _freeze_says_what_is_trained(self) -> "Scenario":
        parts: tuple[Matrix | Rule, ...] = (self.matrix, *self.include)
        asked = {kind for part in parts for kind in part.finetuning or ()}
        if "freeze" in asked and self.freeze is None:
            raise ValueError(
                "finetuning freeze needs to be told what is trained: a section 'freeze' with 'trainable', names or "
                "globs of parameters ('lm_head*', 'model.layers.1.*')"
            )
        return self
