"""What every column of the frames means: unit, definition, and which of them are metrics, and where these come from.

One dictionary for ``bench.load``, the files that ``zerostage report`` writes, the HTML page and docs/metrics.md.
"""

from dataclasses import dataclass

# Where a metric's numbers come from: the row's own provenance, or always the same.
ROW = "row"


@dataclass(frozen=True)
class Column:
    """``provenance`` is set for metrics alone: ``row``, ``theory`` or ``modelled``. ``unit`` is empty for words."""

    meaning: str
    unit: str = ""
    provenance: str | None = None


def _bytes(meaning: str, provenance: str = ROW) -> Column:
    return Column(meaning, "B", provenance)


def _seconds(meaning: str) -> Column:
    return Column(meaning, "s", ROW)


# One row per record: bench.analysis.frame.
COLUMNS: dict[str, Column] = {
    "run": Column("the run folder; only where rows of several are together"),
    "cell_id": Column("12 hex digits of the requested settings; equal cells on any machine have equal ids"),
    "repeat": Column("which launch of the cell, from 0"),
    "requested_stack": Column("the releases that the scenario asked for; missing where that is the installed ones"),
    "label": Column("the cell in words"),
    "model": Column("catalog name, folder or hub id"),
    "num_params": Column("parameters of the model, adapters included", "1"),
    "num_trainable_params": Column("those of them that are trained", "1"),
    "trainable_fraction": Column("num_trainable_params / num_params", "1"),
    "strategy": Column("what the user calls it: a stage, a variant of one, a file"),
    "base_strategy": Column("its stage, or the baseline outside ZeRO"),
    "zero_stage": Column("DeepSpeed's stage; missing for ddp and fsdp2", "1"),
    "world_size": Column("GPUs; on CPU, ranks", "1"),
    "num_nodes": Column("nodes that they are on", "1"),
    "placement": Column("how GPUs are spread over nodes, alike for all GPU counts of one table"),
    "emulation": Column("in words, what an emulated row emulates; empty for a measured one"),
    "train_batch_size": Column("sequences per optimizer step over all GPUs", "1"),
    "train_micro_batch_size_per_gpu": Column("sequences of one GPU in one micro-step", "1"),
    "gradient_accumulation_steps": Column("micro-steps of one optimizer step (GAS)", "1"),
    "seq_length": Column("tokens of a sequence", "1"),
    "seed": Column("of weights and data"),
    "zero_optimization": Column("what the strategy's configuration sets of DeepSpeed's section, JSON"),
    "deepspeed": Column("what it sets beside that section, JSON"),
    "dtype": Column("of parameters and activations"),
    "activation_checkpointing": Column("none, non-reentrant or reentrant"),
    "finetuning": Column("full, lora or freeze"),
    "lora": Column("settings of the adapters, JSON"),
    "freeze": Column("which parameters are trained, JSON"),
    "attn_implementation": Column("which attention was asked for; missing: transformers' own choice"),
    "data": Column("random tokens, or text"),
    "status": Column("what became of the row (docs/architecture.md)"),
    "reason": Column("why it is not completed"),
    "provenance": Column("measured or emulated"),
    "validity": Column("valid, suspect, invalid or unchecked"),
    "validity_reasons": Column("the findings that the verdict rests on"),
    "figures_suspect": Column("whether its figures are in doubt, and not only how it trains"),
    "device": Column("cuda or cpu"),
    "device_name": Column("what the device calls itself"),
    "num_threads": Column("threads that a rank computes with", "1"),
    "started_at": Column("when the launch started, UTC"),
    "isolation": Column("fork or process (docs/architecture.md, warm ranks)"),
    "timing_suspect_reasons": Column("why the times, and only they, are not to be compared"),
    "flops_convention": Column("how FLOPs are counted"),
    "memory_kind": Column("what 'allocated' counts"),
    "backend": Column("of torch.distributed"),
    "wire_model": Column("how bytes on the wire follow from collectives (docs/metrics.md)"),
    "steady": Column("whether the two counted steps moved the same"),
    "parity_reference": Column("the reference run that losses were compared with"),
    "largest_batch": Column("whether the micro batch was searched for (docs/largest-batch.md)"),
    "batch_budget_bytes": Column("memory that the search was to stay within; missing: the device's own", "B"),
    "batch_at_most": Column("micro batch at which the search was to end", "1"),
    "batch_tries": Column("sizes that were looked at", "1"),
    "batch_fails_at": Column("the smallest micro batch that was tried and does not fit", "1"),
    "batch_fails_in": Column("where its memory was highest, or ran out"),
    "batch_fails_for": Column("why it does not fit"),
    "fits": Column("emulated: whether the modelled allocator found room for everything"),
    "step_time_s": _seconds("median over the timed optimizer steps of the slowest rank's wall time"),
    "step_time_iqr_s": _seconds("distance between the quartiles of the same steps"),
    "step_thread_cpu_s": _seconds("as step_time_s, of CPU time of the thread that drives the step"),
    "wall_time_s": _seconds("from the start of the launch, or of the forked ranks, to their end"),
    "agents_start_s": _seconds("how long warm ranks took to start, in the first row after each start"),
    "samples_per_second": Column("train_batch_size / step_time_s", "1/s", ROW),
    "tokens_per_second": Column("samples_per_second x seq_length", "1/s", ROW),
    "tokens_per_second_per_gpu": Column("tokens_per_second / world_size", "1/s", ROW),
    "tflops_per_gpu": Column("model FLOPs per second and GPU, under flops_convention", "TFLOP/s", ROW),
    "mfu": Column("tflops_per_gpu / peak_tflops_per_gpu", "1", ROW),
    "peak_tflops_per_gpu": Column("the device's dense peak (bench/hardware/gpus.yaml)", "TFLOP/s"),
    "peak_allocated_bytes": _bytes("highest during a settled optimizer step, of the rank with most"),
    "peak_allocated_rank": Column("which rank that is", "1"),
    "peak_allocated_min_bytes": _bytes("the same of the rank with least"),
    "peak_reserved_bytes": _bytes("CUDA: highest that the caching allocator held from the device"),
    "init_peak_bytes": _bytes("highest while model and engine are built"),
    "steady_bytes": _bytes("live after a settled optimizer step"),
    "host_peak_rss_bytes": _bytes("highest resident set of a rank's process since its start"),
    "theory_model_state_bytes": _bytes("parameters, gradients and Adam states: ZeRO paper, table 1", "theory"),
    "comm_bytes_per_step": _bytes("larger side of every collective of a step, of the rank with most"),
    "comm_wire_bytes_per_step": _bytes("what a rank sends in a step, under wire_model"),
    "comm_op_count": Column("collectives of a step, control collectives left out", "1", ROW),
    "mean_message_bytes": _bytes("comm_bytes_per_step / comm_op_count"),
    "control_op_count": Column("collectives of at most 8 elements", "1", ROW),
    "sent_bytes_per_token": _bytes("comm_wire_bytes_per_step over the tokens that a rank trains in a step"),
    "theory_comm_wire_bytes_per_step": _bytes("what a rank sends by the ZeRO paper, section 7", "theory"),
    "practice_comm_bytes_per_step": _bytes("comm_bytes_per_step as DeepSpeed's code is read to make it", "theory"),
    "practice_comm_wire_bytes_per_step": _bytes("the same on the wire", "theory"),
    "offload_device_peak_bytes": _bytes("device memory where states are offloaded, highest (docs/offload.md)"),
    "offload_device_steady_bytes": _bytes("the same, after the step"),
    "offload_host_peak_bytes": _bytes("host memory that offload holds, highest"),
    "offload_host_steady_bytes": _bytes("the same, after the step"),
    "offload_pinned_bytes": _bytes("page-locked host memory after the step"),
    "offload_host_to_device_bytes": _bytes("crosses to the device in a step"),
    "offload_device_to_host_bytes": _bytes("crosses to the host in a step"),
    "offload_node_host_peak_bytes": _bytes("host memory of the ranks of the node that holds most"),
    "modelled_peak_allocated_bytes": _bytes("what the modelled CUDA allocator allocates, in whole blocks", "modelled"),
    "modelled_peak_reserved_bytes": _bytes("what it reserves", "modelled"),
    "modelled_num_alloc_retries": Column("how often it gave its cache back, the device being full", "1", "modelled"),
    "modelled_out_of_memory_bytes": _bytes("the first segment that even then the device refused", "modelled"),
    "flops_per_step": Column("operators' FLOPs in a step, of an emulated rank", "FLOP", ROW),
    "parity_loss_difference": Column("largest relative difference of the losses to the reference run", "1", ROW),
    "parity_grad_norm_difference": Column("the same of gradient norms", "1", ROW),
    "final_loss": Column("mean over ranks of the last step's loss", "1", ROW),
}

# One line per cell: bench.analysis.cells and bench.analysis.comparison. Metrics are medians over the launches.
COMPARISON: dict[str, Column] = {
    "view": Column("same global batch, or largest batch that fits: never to be compared with each other"),
    "group": Column("the settings that the rows to be compared share, in words"),
    "stack": Column("requested stack, or installed"),
    "launches": Column("launches that completed and are not invalid: what the medians are over", "1"),
    "launches_failed": Column("the others", "1"),
    "outcome": Column("what became of the others, or of the cell: completed, oom, invalid, ..."),
    "times_suspect": Column("whether times are in doubt"),
    "training_suspect": Column("whether it trains otherwise than asked, its figures standing"),
    "step_time_launch_iqr_s": Column("distance between the quartiles of step_time_s over launches", "s"),
    "step_time_min_s": Column("the fastest launch's step_time_s", "s"),
    "step_time_max_s": Column("the slowest launch's step_time_s", "s"),
    "step_time_vs_base": Column("step_time_s over that of base", "1"),
    "step_time_vs_best": Column(
        "step_time_s over the shortest of the group at this N; as of all best, of rows in no doubt that fit", "1"
    ),
    "tokens_vs_base": Column("tokens_per_second_per_gpu over that of base", "1"),
    "tokens_vs_best": Column("tokens_per_second_per_gpu over the highest of the group at this N", "1"),
    "peak_vs_base": Column("peak_allocated_bytes over that of base", "1"),
    "peak_vs_best": Column("peak_allocated_bytes over the lowest of the group at this N", "1"),
    "sent_vs_base": Column("comm_wire_bytes_per_step over that of base", "1"),
    "sent_vs_best": Column("comm_wire_bytes_per_step over the lowest of the group at this N, where that is not 0", "1"),
    "base": Column("the row that ratios are to: z0 at the same N; of several runs, the same strategy in the first"),
}

# One line per metric of a record: bench.load.
LONG: dict[str, Column] = {
    "metric": Column("name of the metric; missing in the one line of a row that has none (not completed)"),
    "value": Column("its value, in unit"),
    "unit": Column("B, s, 1/s, TFLOP/s, FLOP, or 1 for a plain number"),
    "provenance": Column("measured, emulated, modelled or theory: of this metric"),
}


def is_metric(name: str) -> bool:
    """Whether a column of the frame is a number that was measured, emulated, modelled or computed from theory."""
    return name in COLUMNS and COLUMNS[name].provenance is not None


def definition(name: str) -> Column:
    """Return what a column means, also ``stack_<package>`` ones."""
    if name.startswith("stack_") and name not in COLUMNS:
        return Column(f"version of {name.removeprefix('stack_')} that the ranks ran with")
    return (COLUMNS | COMPARISON)[name]


def markdown() -> str:
    """Return the table of docs/metrics.md."""
    lines = ["| column | unit | meaning | number from |", "|---|---|---|---|"]
    own = {"row": "the row's provenance", None: ""}
    for name, column in (COLUMNS | {"stack_<package>": definition("stack_<package>")}).items():
        source = own.get(column.provenance, column.provenance)
        lines.append(f"| `{name}` | {column.unit} | {column.meaning} | {source} |")
    return "\n".join(lines)


def comparison_markdown() -> str:
    """Return the table of the columns that only lines of cells have."""
    lines = ["| column | unit | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {column.unit} | {column.meaning} |" for name, column in COMPARISON.items()]
    return "\n".join(lines)
