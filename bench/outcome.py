"""What the ranks left behind + what the parent saw -> the record of a cell."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import wire
from bench.cell import Cell
from bench.emulated import EMULATED, emulated
from bench.hang import RankStack
from bench.hardware import peak_tflops
from bench.messages import trace_invalidations
from bench.models.counts import FLOPS_CONVENTION, flops_per_token
from bench.offloaded import offloaded
from bench.plan import PlannedCell
from bench.record import (
    Collective,
    Comm,
    Launch,
    Memory,
    RankMemory,
    Record,
    Shards,
    Status,
    Theory,
    Throughput,
    Timing,
    verdict,
)
from bench.status import judge_launch
from bench.validity.cores import oversubscribed
from bench.validity.examine import Evidence, examine
from bench.validity.ranks import clock
from bench.zero.ds_config import ds_config
from bench.zero.offload import expected
from bench.zero.practice import CONTROL_ELEMENTS, holds_for, practice
from bench.zero.stages import STRATEGIES
from bench.zero.theory import model_state_bytes, wire_bytes_per_step

LOG_TAIL_LINES = 40


def _timing(cell: Cell, result: dict[str, Any], device: str, num_cores: int) -> Timing:
    ranks, num_threads = result["ranks"], result["num_threads"]
    walls, cpus = ([rank[key] for rank in ranks] for key in ("step_times_s", "step_thread_cpu_s"))
    slowest = [max(step) for step in zip(*walls, strict=True)]
    quartiles = statistics.quantiles(slowest, n=4) if len(slowest) > 1 else [slowest[0]] * 3
    return Timing(
        warmup_steps=cell.warmup_steps,
        step_time_s=statistics.median(slowest),
        step_time_iqr_s=quartiles[2] - quartiles[0],
        step_thread_cpu_s=statistics.median(max(step) for step in zip(*cpus, strict=True)),
        step_times_s=walls,
        step_thread_cpu_times_s=cpus,
        suspect_reasons=[
            *clock(cell, result),
            *(oversubscribed(cell.world_size, num_threads, num_cores) if device == "cpu" else []),
        ],
    )


def throughput(cell: Cell, step_time_s: float, model_config: dict[str, Any], device_name: str) -> Throughput:
    """Return the rates of a cell whose optimizer step takes ``step_time_s`` seconds.

    FLOPs are those of the model (bench.models.counts), ``None`` for an architecture without a formula. MFU is
    ``None`` where the device's dense peak at this dtype is not in the catalog.
    """
    samples = cell.train_batch_size / step_time_s
    tokens = samples * cell.seq_length
    # The convention counts the training of all parameters.
    flops = flops_per_token(model_config, cell.seq_length) if cell.finetuning == "full" else None
    tflops = None if flops is None else flops * tokens / cell.world_size / 1e12
    peak = peak_tflops(device_name, cell.dtype)
    return Throughput(
        samples_per_second=samples,
        tokens_per_second=tokens,
        tokens_per_second_per_gpu=tokens / cell.world_size,
        tflops_per_gpu=tflops,
        mfu=None if tflops is None or peak is None else tflops / peak,
        flops_convention=None if flops is None else FLOPS_CONVENTION,
        peak_tflops_per_gpu=peak,
    )


def _rank_memory(planned: PlannedCell, rank: int, found: dict[str, Any]) -> RankMemory:
    """Return the memory of one rank, with what is expected beside each point."""
    memory, params, emulation = RankMemory.model_validate(found), planned.params, planned.cell.emulation
    if params is None:
        return memory
    apart = emulation is not None and emulation.apart
    points = [
        point.model_copy(
            update={"predicted": expected(planned.cell, planned.config, params, point.point, rank, apart=apart)}
        )
        for point in memory.points
    ]
    return memory.model_copy(update={"points": points})


def _memory(kind: str, planned: PlannedCell, ranks: list[dict[str, Any]]) -> Memory:
    first = planned.cell.emulation.rank if planned.cell.emulation is not None else 0
    memories = [_rank_memory(planned, number, rank["memory"]) for number, rank in enumerate(ranks, first)]
    peaks = [memory.peak_allocated_bytes for memory in memories]
    return Memory(
        kind=kind,
        ranks=memories,
        peak_allocated_bytes=max(peaks),
        peak_allocated_rank=first + peaks.index(max(peaks)),
        peak_allocated_min_bytes=min(peaks),
    )


def comm(ranks: list[list[dict[str, Any]]], steady: bool, backend: str) -> Comm:
    """Sum up the collectives of one step, given per rank; control collectives stay out of all totals but their own."""
    rows = [
        Collective(**row, wire_bytes=wire.wire_bytes(row["op"], row["num_bytes"], row["group_size"], backend))
        for row in ranks[0]
    ]
    data = [row for row in rows if row.num_elements > CONTROL_ELEMENTS]
    count = sum(row.count for row in data)
    by_rank = [
        sum(row["num_bytes"] * row["count"] for row in rank if row["num_elements"] > CONTROL_ELEMENTS) for rank in ranks
    ]
    known = all(row.wire_bytes is not None for row in data)
    return Comm(
        backend=backend,
        wire_model=wire.wire_model(backend),
        comm_bytes_per_step=max(by_rank),
        comm_wire_bytes_per_step=sum((row.wire_bytes or 0.0) * row.count for row in data) if known else None,
        comm_op_count=count,
        mean_message_bytes=by_rank[0] / count if count else 0.0,
        control_op_count=sum(row.count for row in rows) - count,
        comm_bytes_per_step_by_rank=by_rank,
        steady=steady,
        collectives=rows,
    )


def refused(planned: PlannedCell, repeat: int, device: str) -> Record:
    """Return the row of a cell that the plan refuses, skipped or unsupported."""
    assert planned.refused is not None
    return _blank(planned, repeat, device, *planned.refused)


def not_built(planned: PlannedCell, repeat: int, device: str, reason: str) -> Record:
    """Return the row of a cell whose environment or compiled op could not be made."""
    return _blank(planned, repeat, device, "build_error", reason)


def does_not_fit(planned: PlannedCell, record: Record, reason: str) -> Record:
    """Return the row of a cell of which not even the smallest batch fits; ``record``: that of the smallest."""
    row = _blank(planned, record.repeat, record.device, "oom", reason)
    return row.model_copy(update={"launch": record.launch, "failure": record.failure})


def unjudged(planned: PlannedCell, repeat: int, *, log: Path, launch: Launch, device: str, error: Exception) -> Record:
    """Return the row of a launch that ``outcome`` failed to judge: the fault is zerostage's, the launch stays."""
    fault = f"{type(error).__name__}: {error}"
    reason = f"zerostage could not judge this row: {fault} (a fault of zerostage; see {launch.log})"
    record = _blank(planned, repeat, device, "crashed", reason)
    tail = _text(log).splitlines()[-LOG_TAIL_LINES:]
    return record.model_copy(update={"launch": launch.model_copy(update={"log_tail": tail})})


def _blank(planned: PlannedCell, repeat: int, device: str, status: Status, reason: str | None) -> Record:
    """Return the row without its metrics."""
    cell, params = planned.cell, planned.params
    apart = device == "cuda" if cell.emulation is None else cell.emulation.apart
    on_host = cell.on_host if apart else frozenset()
    return Record(
        cell_id=planned.cell_id,
        repeat=repeat,
        label=planned.label,
        cell=cell,
        train_batch_size=cell.train_batch_size,
        num_params=params and params.total,
        num_trainable_params=params and params.trained,
        status=status,
        reason=reason,
        requested_stack=planned.stack,
        provenance=cell.provenance,
        device=device if cell.emulation is None else EMULATED,
        ds_config=None if STRATEGIES[cell.strategy].zero_stage is None else ds_config(cell),
        theory=params
        and Theory(
            model_state_bytes=model_state_bytes(
                params.total, cell.strategy, cell.world_size, cell.dtype, params.trained, on_host
            ),
            comm_wire_bytes_per_step=wire_bytes_per_step(
                params.total, cell.strategy, cell.world_size, cell.dtype, params.trained
            ),
        ),
    )


def _counted(planned: PlannedCell, result: dict[str, Any], log: str) -> dict[str, Any]:
    """Return what the counting pass found, as it stands in measured and emulated records alike."""
    cell, ranks = planned.cell, result["ranks"]
    practices = holds_for(result["stack"], cell.strategy)
    return {
        "num_params": result["num_params"],
        "offload": offloaded(planned, ranks),
        "num_trainable_params": result["effective"].get("num_trainable_params"),
        "shards": [Shards.model_validate(rank["shards"]) for rank in ranks],
        "stack": result["stack"],
        "num_threads": result["num_threads"],
        "memory": _memory(result["memory_kind"], planned, ranks),
        "comm": comm([rank["collectives"] for rank in ranks], all(rank["steady"] for rank in ranks), result["backend"]),
        "practice": practice(cell, planned.config, result["backend"]) if practices else None,
        "skipped_steps": result["skipped_steps"],
        "activity_s": result["activity_s"],
        # Stage 3 alone records an order of modules, and bench.zero.ds_config has it say when it drops that.
        "trace_invalidations": trace_invalidations(log) if cell.strategy == "z3" else None,
    }


def _text(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except OSError:
        return ""


def outcome(
    planned: PlannedCell,
    repeat: int,
    *,
    work: Path,
    log: Path,
    launch: Launch,
    timeout_s: float,
    device: str,
    num_cores: int,
    references: dict[int, dict[str, Any]],
    stacks: Sequence[RankStack] = (),
    oom_kills: str | None = None,
) -> Record:
    """Return the record of a launched cell, from the files in ``work`` and how the launch ended.

    ``references``: what `bench.references.find` has for the cell. ``stacks`` and ``oom_kills``: what
    bench.launch.witness saw.
    """
    cell = planned.cell
    text = _text(log)
    status, reason, failure = judge_launch(
        work,
        launch.exit_status,
        timeout_s,
        log=text,
        stacks=stacks,
        oom_kills=oom_kills,
        world_size=cell.num_processes,
        device=device,
        emulated=cell.emulation is not None,
    )
    record = _blank(planned, repeat, device, status, reason)
    tail = text.splitlines()[-LOG_TAIL_LINES:]
    launch = launch.model_copy(update={"log_tail": tail if status != "completed" else []})
    record = record.model_copy(update={"launch": launch, "failure": failure})
    if status != "completed":
        return record
    result = json.loads((work / "result.json").read_text())
    if cell.emulation is not None:
        return record.model_copy(
            update=emulated(planned, result, _counted(planned, result, text), f"traces/{log.stem}.json.gz")
        )
    ranks = result["ranks"]
    means = [sum(step) / len(step) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
    losses = [loss if math.isfinite(loss) else None for loss in means]
    timing = _timing(cell, result, device, num_cores)
    counted = _counted(planned, result, text)
    evidence = Evidence(
        losses,
        references,
        comm=counted["comm"],
        practice=counted["practice"],
        memory=counted["memory"],
        offload=counted["offload"],
        log=text,
    )
    compared, findings = examine(planned, result, evidence)
    return record.model_copy(
        update=counted
        | {
            "validity": verdict(findings),
            "findings": findings,
            "parity": compared,
            "device_name": result["device_name"],
            "effective": result["effective"] | {"node_of_rank": [rank["node"] for rank in ranks]},
            "timing": timing,
            "throughput": throughput(cell, timing.step_time_s, planned.config, result["device_name"]),
            "losses": losses,
        }
    )
