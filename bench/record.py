"""The record: one row per cell and repeat, with where each number came from. Upgraded on read.

The JSON schema of this module is docs/record.schema.json. Bytes and seconds are plain numbers.
"""

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bench import json_text
from bench.cell import Cell
from bench.errors import StoreError

SCHEMA_VERSION = 4

Status = Literal[
    "completed",
    "oom",
    "host_oom",
    "timeout",
    "hang",
    "config_error",
    "build_error",
    "unsupported",
    "crashed",
    "silent_exit",
    "skipped",
]
# What a cell can end in that tells its user something about the cell, not about a fault.
ANSWERS: tuple[Status, ...] = ("completed", "oom", "host_oom", "unsupported", "skipped")
Validity = Literal["valid", "suspect", "invalid", "unchecked"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Timing(_Model):
    """The timed pass. Raw lists are ``[rank][step]`` in seconds.

    ``step_time_s`` is the median over steps of the slowest rank's wall time; ``step_time_iqr_s`` is the distance
    between the quartiles of the same. ``step_thread_cpu_s`` treats CPU time of the driving thread alike.
    ``suspect_reasons`` says why the times, and only they, are not to be compared.
    """

    warmup_steps: int
    step_time_s: float
    step_time_iqr_s: float
    step_thread_cpu_s: float
    step_times_s: list[list[float]]
    step_thread_cpu_times_s: list[list[float]]
    suspect_reasons: list[str] = []


class Throughput(_Model):
    """Rates at the median step. Tokens are ``seq_length`` per sample, padding being none.

    ``tflops_per_gpu`` and ``mfu`` use model FLOPs under ``flops_convention``, without recompute.
    """

    samples_per_second: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float | None
    mfu: float | None
    flops_convention: str | None
    peak_tflops_per_gpu: float | None


class Finding(_Model):
    """What one check of the suite found. ``verdict`` ``note`` informs and lowers no validity.

    ``affects``: ``figures`` (time, memory, traffic cannot be relied on) or ``training`` (the run does not train as
    was asked, its other figures stand).
    """

    check: str
    verdict: Literal["invalid", "suspect", "unchecked", "note"]
    text: str
    affects: Literal["figures", "training"] = "figures"


class MemoryPoint(_Model):
    """What holds a rank's memory at one moment of the counted step; ``bytes`` by category sum to ``total_bytes``.

    ``point``: ``init`` (engine built), ``forward`` (end of the last forward), ``backward`` (end of the last backward),
    ``step`` (highest inside the optimizer step), ``peak`` (highest of the whole step). ``where`` is the phase, and the
    module if any, that was running. ``predicted`` holds, by category, what theory-in-practice expects
    (bench.zero.memory), where it has an answer. ``host_bytes``: what of it is in host memory where states are
    offloaded; a part of ``bytes`` where one device is both (CPU), beside them where the two are apart.
    """

    point: str
    where: str
    total_bytes: int
    bytes: dict[str, int]
    predicted: dict[str, float] = {}
    host_bytes: dict[str, int] = {}


class RankMemory(_Model):
    """Bytes on one rank. ``init_peak_bytes``: building model and engine; the rest: one settled optimizer step."""

    init_peak_bytes: int
    steady_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    host_peak_rss_bytes: int
    points: list[MemoryPoint] = []


class RankOffload(_Model):
    """Bytes of one rank in one settled optimizer step, host and device apart; ``steady`` after it.

    ``pinned_bytes``: page-locked host memory after the step, without the rounding of PyTorch's allocator for it.
    ``host_to_device_bytes`` and ``device_to_host_bytes`` cross in the step, copies of at most 8 elements left out.
    """

    device_peak_bytes: int
    device_steady_bytes: int
    host_peak_bytes: int
    host_steady_bytes: int
    pinned_bytes: int
    host_to_device_bytes: int
    device_to_host_bytes: int


class Offload(_Model):
    """What offload keeps in host memory, by rank. On CPU, host and device are one: their sum is measured, and the split
    is ``emulated``, by the object of DeepSpeed that owns each storage (bench.worker.offload).

    ``predicted``: by the names of ``RankOffload``, what DeepSpeed's code should come to (bench.zero.offload), where it
    has an answer. ``node_host_peak_bytes``: the ranks of the node that holds most, together.
    """

    provenance: Literal["emulated"] = "emulated"
    ranks: list[RankOffload]
    predicted: list[dict[str, int]]
    node_host_peak_bytes: int


class Shards(_Model):
    """Elements that one rank really holds, summed over its tensors, padding included.

    ``gradients`` at the end of the last backward; ``None`` where the engine keeps none that could be found.
    """

    parameters: int
    gradients: int | None
    optimizer_states: int


class Parity(_Model):
    """Loss and gradient norms per optimizer step, beside those of the reference run. Differences are relative.

    ``grad_norms`` are global and before clipping, as the engine reports them on rank 0 (``None``: it reports none);
    ``applied_grad_norms`` are of the gradient that the optimizers of all ranks were handed. The reference is plain
    PyTorch in one process on the same global batches (bench.worker.reference); without one its lists are empty.
    """

    reference: str | None
    losses: list[float | None]
    reference_losses: list[float | None]
    grad_norms: list[float | None]
    reference_grad_norms: list[float | None]
    applied_grad_norms: list[float | None]
    reference_applied_grad_norms: list[float | None]
    loss_tolerance: float
    grad_norm_tolerance: float
    worst_loss_difference: float | None
    worst_grad_norm_difference: float | None
    worst_applied_grad_norm_difference: float | None


class Memory(_Model):
    """Memory per rank, in rank order; of an emulated cell, of the emulated rank alone. ``kind``: what was counted."""

    kind: str
    ranks: list[RankMemory]
    peak_allocated_bytes: int
    peak_allocated_rank: int
    peak_allocated_min_bytes: int

    @property
    def largest(self) -> RankMemory:
        """The rank whose peak is the highest."""
        return self.ranks[self.peak_allocated_rank] if len(self.ranks) > 1 else self.ranks[0]


class Collective(_Model):
    """Equal collectives of one step on rank 0, or on the emulated rank; bytes are of the larger side of one of them."""

    phase: str
    op: str
    dtype: str
    num_elements: int
    num_bytes: int
    group_size: int
    during_autograd: bool
    count: int
    wire_bytes: float | None
    group: Literal["intra-node", "inter-node"] = "intra-node"


class Comm(_Model):
    """Traffic of one settled optimizer step. Control collectives (at most 8 elements) are counted apart.

    ``comm_bytes_per_step`` is the largest rank's; ``comm_wire_bytes_per_step`` is rank 0's under ``wire_model``,
    ``None`` when a collective is unknown to it. ``steady``: two steps in a row moved exactly the same.
    """

    backend: str
    wire_model: str
    comm_bytes_per_step: int
    comm_wire_bytes_per_step: float | None
    comm_op_count: int
    mean_message_bytes: float
    control_op_count: int
    comm_bytes_per_step_by_rank: list[int]
    steady: bool
    collectives: list[Collective]


class Theory(_Model):
    """What the ZeRO paper gives for this cell, per GPU (bench.zero.theory)."""

    model_state_bytes: float
    comm_wire_bytes_per_step: float


class Volume(_Model):
    """Bytes that DeepSpeed's practice predicts for one optimizer step, by phase, operation and dtype.

    ``num_bytes`` are those of the larger side, as in ``Collective``, summed over the calls.
    """

    phase: str
    op: str
    dtype: str
    num_bytes: int


class Practice(_Model):
    """What DeepSpeed's code, as read and modelled in bench.zero.practice, moves for this cell."""

    volumes: list[Volume]
    comm_bytes_per_step: int
    comm_wire_bytes_per_step: float | None


class Launch(_Model):
    """What the parent process saw. ``exit_status``: the launcher's; of forked ranks that of the first that
    failed, or of the agent that was lost.

    ``isolation``: ``fork``: the ranks are children of warm agents, which ``command`` started, and ``wall_time_s`` is
    that of the children; ``agents_start_s`` is set on the first row after agents were started: how long that took.
    """

    command: list[str]
    isolation: Literal["fork", "process"] = "process"
    started_at: str
    wall_time_s: float
    agents_start_s: float | None = None
    exit_status: int | None
    log: str
    log_tail: list[str]


class Failure(_Model):
    """The first exception of any rank, if one was left. ``requested_bytes``: of the allocation that failed."""

    rank: int
    activity: str
    type: str
    message: str
    traceback: list[str]
    phase: str | None = None
    requested_bytes: int | None = None


class BatchTry(_Model):
    """A size that was looked at for ``train_micro_batch_size_per_gpu: max``, and what it said.

    ``how``: ``predicted`` by the formulas of bench.zero.memory, ``emulated``, or ``measured``; only sizes that were
    tried as the row's ``provenance`` says decide, the others propose where to begin. ``peak_bytes`` is what was held
    against the budget (docs/largest-batch.md), ``phase`` where memory was highest, ``reason`` set where it does not
    fit.
    """

    train_micro_batch_size_per_gpu: int
    how: Literal["predicted", "emulated", "measured"]
    status: Status
    fits: bool
    peak_bytes: int | None = None
    phase: str | None = None
    reason: str | None = None
    wall_time_s: float = 0.0


class AllocatorModel(_Model):
    """Modelled, not counted: what PyTorch's CUDA caching allocator would make of the storages of an emulated rank.

    Peaks are those of the last counted step. ``peak_allocated_bytes`` differs from the exact figure by the rounding of
    blocks. ``num_alloc_retries``: how often, since the process began, the device was full and the cache given back;
    ``out_of_memory_bytes``: the first segment that even then the device refused, ``None`` if there was room for all.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int
    out_of_memory_bytes: int | None


class Guess(_Model):
    """A value that depends on content which an emulated rank has not, and that the program read ``count`` times.

    ``reader``: the function that read it; ``origin``: the operator it came from; ``value``: the first that was given.
    """

    reader: str
    origin: str
    value: str
    count: int


class Emulation(_Model):
    """What an emulated row has to say of itself. ``fits``: whether the modelled allocator found room for everything.

    ``trace``: the file of the last counted step's operators and collectives; ``not_known``: what emulation cannot see.
    """

    fits: bool
    allocator: AllocatorModel
    guesses: list[Guess]
    flops_per_step: int
    trace: str
    not_known: list[str]


class Record(_Model):
    """One row. Metrics are ``None`` unless ``status`` is ``completed``; ``reason`` is set when it is not.

    ``ds_config``: the configuration that DeepSpeed was given. ``activity_s``: what rank 0 did (the names that a
    failure's ``activity`` has), in order, and for how long.
    """

    schema_version: int = SCHEMA_VERSION
    cell_id: str
    repeat: int
    label: str
    cell: Cell
    train_batch_size: int
    num_params: int | None
    num_trainable_params: int | None = None
    provenance: Literal["measured", "emulated"] = "measured"
    status: Status
    reason: str | None = None
    validity: Validity = "unchecked"
    findings: list[Finding] = []
    requested_stack: str | None = None
    device: str
    device_name: str | None = None
    stack: dict[str, str] = {}
    num_threads: int | None = None
    effective: dict[str, Any] = {}
    timing: Timing | None = None
    throughput: Throughput | None = None
    memory: Memory | None = None
    comm: Comm | None = None
    theory: Theory | None = None
    practice: Practice | None = None
    shards: list[Shards] = []
    offload: Offload | None = None
    ds_config: dict[str, Any] | None = None
    parity: Parity | None = None
    losses: list[float | None] = []
    skipped_steps: int | None = None
    trace_invalidations: int | None = None
    activity_s: dict[str, float] = {}
    emulation: Emulation | None = None
    failure: Failure | None = None
    launch: Launch | None = None
    batch_search: list[BatchTry] = []

    @property
    def presentable(self) -> bool:
        """Whether its numbers may be shown: it completed, and is not known to be wrong."""
        return self.status == "completed" and self.validity != "invalid"

    @property
    def figures_suspect(self) -> bool:
        """Whether a finding says that its figures, and not only its training, cannot be relied on."""
        return any(f.affects == "figures" for f in self.findings if f.verdict in ("suspect", "invalid"))

    @property
    def spent_s(self) -> float:
        """Seconds that the launches of this row took, those of a search for its batch included; 0 without one."""
        return sum(each.wall_time_s for each in self.batch_search) or (self.launch.wall_time_s if self.launch else 0.0)


def verdict(findings: list[Finding]) -> Validity:
    """Return the validity that ``findings`` amount to: the worst of them, ``valid`` when none lowers it."""
    found = {finding.verdict for finding in findings}
    worst: tuple[Validity, ...] = ("invalid", "suspect", "unchecked")
    return next((word for word in worst if word in found), "valid")


def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 keeps each reason with the check that found it; version 1 had no reference run."""
    kind = data["validity"]
    reasons = data.pop("validity_reasons")
    return data | {
        "findings": [
            {"check": "record version 1", "verdict": kind, "text": text} for text in reasons if kind != "valid"
        ]
    }


def _from_2(data: dict[str, Any]) -> dict[str, Any]:
    """Version 3 has emulated rows; those of version 2 are measured."""
    return data


def _from_3(data: dict[str, Any]) -> dict[str, Any]:
    """Version 4 has offload, training modes, searches for the largest batch, and the configuration DeepSpeed got."""
    return data


# UPGRADES[n] turns the content of a version n record into version n + 1.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2, 3: _from_3}


def parse_record(text: str, name: str) -> Record:
    """Read a record of this or an older schema version; ``name`` is its file, for the messages.

    Raises:
        StoreError: the text is torn, is not a record, or a newer zerostage wrote it.
    """
    remedy = "move the file away and run the scenario again: only that cell will be measured"
    try:
        data = json_text.read(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name}: torn or damaged record ({error}); {remedy}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise StoreError(f"{name}: not a record, it has no 'schema_version'; {remedy}")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{name}: schema_version {version} was written by a newer zerostage, this one reads up to "
            f"{SCHEMA_VERSION}; upgrade zerostage"
        )
    try:
        while version < SCHEMA_VERSION:
            data = UPGRADES[version](data)
            version += 1
            data["schema_version"] = version
        return Record.model_validate(data)
    except ValidationError as error:
        detail = "; ".join(f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()[:3])
    except KeyError as error:
        detail = f"missing {error}"
    except (TypeError, ValueError, AttributeError) as error:  # an upgrade met content of another form
        detail = str(error)
    raise StoreError(f"{name}: damaged record ({detail}); {remedy}")


if __name__ == "__main__":
    print(json.dumps(Record.model_json_schema(), indent=1))
