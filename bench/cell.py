"""The cell: the requested settings of one row, and the names by which it is found."""

import hashlib
import json
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from bench.corpus import digest
from bench.models.catalog import content_key
from bench.scenario import Data, Dtype, Finetuning, Freeze, Lora, Optimizer

# The counting pass. Stage 3 records the order of its modules in the first two steps and prefetches from the
# third on; Adam's states exist from the first. Two counted steps show that the state is steady: their traffic
# must agree.
SETTLING_STEPS = 3
COUNTED_STEPS = 2


class EmulatedRank(BaseModel):
    """Which rank of the cell is emulated, and on what: ``gpu_memory_bytes`` is the target's, never the host's.

    ``position`` is the rank in the words of who asked, alike for all GPU counts: ``first``, ``last``, ``rank 5``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = 0
    position: str = "first"
    gpus_per_node: int = 8
    gpu_memory_bytes: int = 80 * 2**30
    accelerator_path: Literal["cuda-like", "cpu"] = "cuda-like"

    @property
    def apart(self) -> bool:
        """Whether the rank's host and device are told apart, as a GPU's are."""
        return self.accelerator_path == "cuda-like"


class BatchLimits(BaseModel):
    """The micro batch is the largest that fits into ``memory_bytes`` of a GPU; ``at_most``: where the search ends.

    ``None``: into the device's own memory, or the emulated GPU's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: int | None = None
    at_most: int = 4096


class Cell(BaseModel):
    """The requested settings of one row. Equal cells on any machine have equal ``cell_id``.

    ``strategy`` is a stage (or ddp), and ``zero_optimization`` and ``deepspeed`` hold every further key that its
    DeepSpeed configuration sets. ``name`` is what the user calls all that (``z2-offload``, the stem of a
    configuration file); it is no setting and of no id. With ``largest_batch`` the micro batch is what a search finds,
    1 before it. With neither ``lora`` nor ``freeze`` all parameters are trained.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    strategy: str
    name: str | None = None
    world_size: int = 1
    num_nodes: int = 1
    train_micro_batch_size_per_gpu: int = 1
    gradient_accumulation_steps: int = 1
    seq_length: int = 128
    dtype: Dtype = "bf16"
    activation_checkpointing: bool | Literal["reentrant"] = False
    lora: Lora | None = None
    freeze: Freeze | None = None
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    zero_optimization: dict[str, Any] = {}
    deepspeed: dict[str, Any] = {}
    experts_implementation: Literal["eager", "batched_mm", "grouped_mm"] | None = None
    attn_implementation: str | None = None
    emulation: EmulatedRank | None = None
    largest_batch: BatchLimits | None = None
    seed: int = 0
    warmup_steps: int = 3
    steps: int = 10

    @property
    def train_batch_size(self) -> int:
        """Sequences per optimizer step over all GPUs: micro batch x accumulation x GPUs."""
        return self.train_micro_batch_size_per_gpu * self.gradient_accumulation_steps * self.world_size

    @property
    def strategy_name(self) -> str:
        """What the user calls the strategy, with its settings."""
        return self.name or self.strategy

    @property
    def finetuning(self) -> Finetuning:
        """What is trained, as a scenario asks for it."""
        return "lora" if self.lora is not None else "freeze" if self.freeze is not None else "full"

    @property
    def checkpointing(self) -> Literal["none", "non-reentrant", "reentrant"]:
        """How activations are recomputed, in words."""
        if self.activation_checkpointing == "reentrant":
            return "reentrant"
        return "non-reentrant" if self.activation_checkpointing else "none"

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer states are kept, and updated, outside the device."""
        return "offload_optimizer" in self.zero_optimization

    @property
    def offloads_param(self) -> bool:
        """Whether parameters are kept outside the device when not in use."""
        return "offload_param" in self.zero_optimization

    @property
    def on_host(self) -> frozenset[str]:
        """What is kept in host memory, where that is apart from the device's: ``optimizer``, ``param``."""
        kept = {"optimizer": self.offloads_optimizer, "param": self.offloads_param}
        return frozenset(name for name, offloaded in kept.items() if offloaded)

    @property
    def provenance(self) -> Literal["measured", "emulated"]:
        """Where its numbers come from."""
        return "measured" if self.emulation is None else "emulated"

    @property
    def num_processes(self) -> int:
        """Processes of one launch: a rank each, or the one rank that is emulated."""
        return self.world_size if self.emulation is None else 1

    @property
    def total_steps(self) -> int:
        """Optimizer steps of one launch: counting pass, warm-up and timed; an emulated one has the first alone."""
        if self.emulation is not None:
            return SETTLING_STEPS + COUNTED_STEPS
        return SETTLING_STEPS + COUNTED_STEPS + self.warmup_steps + self.steps

    @property
    def model_name(self) -> str:
        """The model without the folders of a local path or the organisation of a hub id."""
        return self.model.rstrip("/").split("/")[-1]

    @property
    def label(self) -> str:
        """A readable name, unique within most scenarios: ``llama-tiny/z2/w2/mbs4/gas1/s128/bf16``."""
        parts = [
            self.model_name,
            self.strategy_name,
            f"w{self.world_size}" + (f"n{self.num_nodes}" if self.num_nodes > 1 else ""),
            "mbsmax" if self.largest_batch else f"mbs{self.train_micro_batch_size_per_gpu}",
            f"gas{self.gradient_accumulation_steps}",
            f"s{self.seq_length}",
            self.dtype,
        ]
        parts += {"none": [], "non-reentrant": ["ckpt"], "reentrant": ["ckpt-reentrant"]}[self.checkpointing]
        parts += [f"lora-r{self.lora.r}"] if self.lora else ["freeze"] if self.freeze else []
        parts += [self.attn_implementation] if self.attn_implementation else []
        if self.emulation is not None:
            parts += ["emulated"] + ([f"rank{self.emulation.rank}"] if self.emulation.rank else [])
        return "/".join(parts)

    @property
    def cell_id(self) -> str:
        """12 hex digits of the SHA-256 of the non-default settings, with file content in place of paths.

        A field added later with a default changes no id; tests/unit/test_plan.py holds golden values.
        """
        # What a search finds is a result.
        no_setting = {"name"} | ({"train_micro_batch_size_per_gpu"} if self.largest_batch else set())
        settings = self.model_dump(mode="json", exclude_defaults=True, exclude=no_setting)
        settings |= {"model": content_key(self.model), "strategy": self.strategy}
        if self.data.path is not None:
            settings["data"]["path"] = digest(self.data.path)
        canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def matches(self, glob: str) -> bool:
        """Whether ``glob`` matches the id, the model, or the label, whole or any run of its parts (``z3/w*``)."""
        names = (self.cell_id, self.model, self.label)
        return any(fnmatchcase(name, glob) for name in names) or fnmatchcase(f"/{self.label}/", f"*/{glob}/*")
