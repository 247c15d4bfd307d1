"""The record: one row per cell and repeat, with where each number came from. Upgraded on read.

The JSON schema of this module is docs/record.schema.json. Bytes and seconds are plain numbers.
"""

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.cell import Cell
from bench.errors import StoreError

SCHEMA_VERSION = 1

Status = Literal["completed", "oom", "timeout", "crashed", "config_error", "unsupported", "silent_exit", "skipped"]
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


class RankMemory(_Model):
    """Bytes on one rank. ``init_peak_bytes``: building model and engine; the rest: one settled optimizer step."""

    init_peak_bytes: int
    steady_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    host_peak_rss_bytes: int


class Memory(_Model):
    """Memory per rank, in rank order. ``kind`` says what was counted."""

    kind: str
    ranks: list[RankMemory]
    peak_allocated_bytes: int
    peak_allocated_rank: int
    peak_allocated_min_bytes: int


class Collective(_Model):
    """Equal collectives of one optimizer step on rank 0; bytes are those of the larger side of one of them."""

    phase: str
    op: str
    dtype: str
    num_elements: int
    num_bytes: int
    group_size: int
    during_autograd: bool
    count: int
    wire_bytes: float | None


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


class Launch(_Model):
    """What the parent process saw."""

    command: list[str]
    started_at: str
    wall_time_s: float
    exit_status: int | None
    log: str
    log_tail: list[str]


class Failure(_Model):
    """The first exception of any rank, if one was left."""

    rank: int
    activity: str
    type: str
    message: str
    traceback: list[str]


class Record(_Model):
    """One row. Metrics are ``None`` unless ``status`` is ``completed``; ``reason`` is set when it is not."""

    schema_version: int = SCHEMA_VERSION
    cell_id: str
    repeat: int
    label: str
    cell: Cell
    train_batch_size: int
    num_params: int | None
    provenance: Literal["measured"] = "measured"
    status: Status
    reason: str | None = None
    validity: Validity = "unchecked"
    validity_reasons: list[str] = []
    device: str
    device_name: str | None = None
    stack: dict[str, str] = {}
    num_threads: int | None = None
    effective: dict[str, str | int | None] = {}
    timing: Timing | None = None
    throughput: Throughput | None = None
    memory: Memory | None = None
    comm: Comm | None = None
    theory: Theory | None = None
    losses: list[float | None] = []
    skipped_steps: int | None = None
    failure: Failure | None = None
    launch: Launch | None = None


# UPGRADES[n] turns the content of a version n record into version n + 1.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def parse_record(text: str, name: str) -> Record:
    """Read a record of this or an older schema version; ``name`` is its file, for the messages.

    Raises:
        StoreError: the text is torn, is not a record, or a newer zerostage wrote it.
    """
    remedy = "move the file away and run the scenario again: only that cell will be measured"
    try:
        data = json.loads(text)
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
    except (KeyError, ValidationError) as error:
        detail = (
            "; ".join(f"'{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in error.errors()[:3])
            if isinstance(error, ValidationError)
            else f"missing {error}"
        )
        raise StoreError(f"{name}: damaged record ({detail}); {remedy}") from None


if __name__ == "__main__":
    print(json.dumps(Record.model_json_schema(), indent=1))
