"""Records -> one tidy pandas frame, a row per record. Its columns are defined in bench.analysis.columns."""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from bench.analysis.columns import COLUMNS, is_metric
from bench.cell import Cell
from bench.record import Record
from bench.zero.stages import STRATEGIES

# The settings that make two rows comparable: equal in all of these, they differ only in strategy and GPU count.
CONTROLS = [
    "model",
    "placement",
    "train_micro_batch_size_per_gpu",
    "seq_length",
    "dtype",
    "activation_checkpointing",
    "finetuning",
    "lora",
    "freeze",
    "attn_implementation",
    "data",
    "device",
    "emulation",
]


# Numbers that are no metric and may be missing.
_NUMBERS = {
    "num_threads",
    "peak_tflops_per_gpu",
    "trainable_fraction",
    "batch_budget_bytes",
    "batch_at_most",
    "batch_fails_at",
}


_YES_OR_NO = {"steady", "fits"}  # missing where the row is not completed, or not emulated


def _emulated(cell: Cell) -> str:
    """Return in words what an emulated cell emulates, alike for all GPU counts of one request; else ``""``."""
    if cell.emulation is None:
        return ""
    position = cell.emulation.position
    return (
        f"emulated {position if position.startswith('rank') else f'{position} rank'}, {cell.emulation.gpus_per_node} "
        f"GPUs of {cell.emulation.gpu_memory_bytes / 2**30:g} GiB per node, {cell.emulation.accelerator_path} path"
    )


def _batch_search(record: Record) -> dict[str, Any]:
    """Return what a search for the largest batch came to; in a row of another kind, that there was none."""
    asked = record.cell.largest_batch
    if asked is None:
        return {"largest_batch": False}
    deciding = [each for each in record.batch_search if each.how == record.provenance]
    refused = [each for each in deciding if not each.fits]
    smallest = min(refused, key=lambda each: each.train_micro_batch_size_per_gpu, default=None)
    return {
        "largest_batch": True,
        "batch_budget_bytes": asked.memory_bytes,
        "batch_at_most": asked.at_most,
        "batch_tries": len(record.batch_search),
        "batch_fails_at": smallest and smallest.train_micro_batch_size_per_gpu,
        "batch_fails_in": smallest and smallest.phase,
        "batch_fails_for": smallest and smallest.reason,
    }


def _fraction(record: Record) -> float | None:
    if record.num_trainable_params is None or not record.num_params:
        return None
    return record.num_trainable_params / record.num_params


def _row(record: Record) -> dict[str, Any]:
    cell, emulation = record.cell, record.cell.emulation
    row: dict[str, Any] = {
        "cell_id": record.cell_id,
        "repeat": record.repeat,
        "requested_stack": record.requested_stack,
        "label": record.label,
        "model": cell.model,
        "num_params": record.num_params,
        "num_trainable_params": record.num_trainable_params,
        "trainable_fraction": _fraction(record),
        "strategy": cell.strategy_name,
        "base_strategy": cell.strategy,
        "zero_stage": STRATEGIES[cell.strategy].zero_stage,
        "world_size": cell.world_size,
        "num_nodes": cell.num_nodes,
        # An emulated cell has as many nodes as its GPUs fill, so rows of one table may differ in that.
        "placement": f"{cell.num_nodes} nodes" if emulation is None else f"{emulation.gpus_per_node} GPUs per node",
        "emulation": _emulated(cell),
        "train_batch_size": record.train_batch_size,
        "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "seq_length": cell.seq_length,
        "seed": cell.seed,
        "zero_optimization": json.dumps(cell.zero_optimization),
        "deepspeed": json.dumps(cell.deepspeed),
        "dtype": cell.dtype,
        "activation_checkpointing": cell.checkpointing,
        "finetuning": cell.finetuning,
        "lora": cell.lora and json.dumps(cell.lora.model_dump(mode="json")),
        "freeze": cell.freeze and json.dumps(cell.freeze.model_dump(mode="json")),
        "attn_implementation": cell.attn_implementation,
        "data": cell.data.kind,
        "status": record.status,
        "reason": record.reason,
        "provenance": record.provenance,
        "validity": record.validity,
        "validity_reasons": "; ".join(f.text for f in record.findings if f.verdict == record.validity),
        "figures_suspect": record.figures_suspect,
        "device": record.device,
        "device_name": record.device_name,
        "num_threads": record.num_threads,
        "theory_model_state_bytes": record.theory and record.theory.model_state_bytes,
        "theory_comm_wire_bytes_per_step": record.theory and record.theory.comm_wire_bytes_per_step,
        "practice_comm_bytes_per_step": record.practice and record.practice.comm_bytes_per_step,
        "practice_comm_wire_bytes_per_step": record.practice and record.practice.comm_wire_bytes_per_step,
        "started_at": record.launch and record.launch.started_at,
        "wall_time_s": record.launch and record.launch.wall_time_s,
        "isolation": record.launch and record.launch.isolation,
        "agents_start_s": record.launch and record.launch.agents_start_s,
    }
    row |= {f"stack_{package}": version for package, version in record.stack.items()}
    if record.timing:
        row |= record.timing.model_dump(include={"step_time_s", "step_time_iqr_s", "step_thread_cpu_s"})
        row["timing_suspect_reasons"] = "; ".join(record.timing.suspect_reasons)
    if record.throughput:
        row |= record.throughput.model_dump()
    if record.memory:
        row |= record.memory.model_dump(exclude={"kind", "ranks"})
        ranks = record.memory.ranks
        row["memory_kind"] = record.memory.kind
        row["peak_reserved_bytes"] = max((r.peak_reserved_bytes for r in ranks if r.peak_reserved_bytes), default=None)
        for name in ("init_peak_bytes", "steady_bytes", "host_peak_rss_bytes"):
            row[name] = max(getattr(rank, name) for rank in ranks)
    if record.offload:
        for name in type(record.offload.ranks[0]).model_fields:
            row[f"offload_{name}"] = max(getattr(rank, name) for rank in record.offload.ranks)
        row["offload_node_host_peak_bytes"] = record.offload.node_host_peak_bytes
    if record.emulation:
        row["fits"] = record.emulation.fits
        row |= {f"modelled_{name}": value for name, value in record.emulation.allocator.model_dump().items()}
        row["flops_per_step"] = record.emulation.flops_per_step
    if record.comm:
        row |= record.comm.model_dump(exclude={"collectives", "comm_bytes_per_step_by_rank"})
        sent, tokens = record.comm.comm_wire_bytes_per_step, record.train_batch_size * cell.seq_length / cell.world_size
        row["sent_bytes_per_token"] = None if sent is None else sent / tokens
    if record.parity:
        row["parity_reference"] = record.parity.reference
        row["parity_loss_difference"] = record.parity.worst_loss_difference
        row["parity_grad_norm_difference"] = record.parity.worst_grad_norm_difference
    row |= _batch_search(record)
    if record.losses:
        row["final_loss"] = record.losses[-1]
    return row


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per record; metrics of a row that is not ``completed`` are missing values, never 0."""
    return tidy(pd.DataFrame([_row(record) for record in records]))


def tidy(data: pd.DataFrame) -> pd.DataFrame:
    """Return rows in their usual form: what is a number is one, missing or not; columns in the order of their table."""
    for name in data.columns:
        if is_metric(name) or name in _NUMBERS:
            data[name] = pd.to_numeric(data[name])
        elif name in _YES_OR_NO:
            data[name] = data[name].astype("boolean")
        elif data[name].dtype == "object":
            data[name] = data[name].astype("str")
    place = {name: number for number, name in enumerate(COLUMNS)}
    return data[sorted(data.columns, key=lambda name: place.get(str(name), len(place)))]
