"""The long form: one line per metric of a record, each with its unit and with where it comes from."""

import pandas as pd

from bench.analysis.columns import COLUMNS, LONG, ROW, is_metric

# What a line says of its record beside the metric; the rest is in the frame, by cell_id, requested_stack and repeat.
IDENTITY = [
    *("run", "cell_id", "requested_stack", "repeat", "label", "model", "num_params", "strategy", "base_strategy"),
    *("zero_stage", "world_size", "num_nodes", "train_batch_size", "train_micro_batch_size_per_gpu"),
    *("gradient_accumulation_steps", "seq_length", "dtype", "activation_checkpointing", "finetuning", "emulation"),
    *("largest_batch", "device", "device_name", "stack_torch", "stack_deepspeed", "stack_transformers"),
    *("status", "reason", "validity", "figures_suspect", "timing_suspect_reasons"),
]


def long(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics of ``frame`` (bench.analysis.frame), a line each: ``metric value unit provenance``.

    A metric that a record has not is no line. A record without any, one that failed for instance, is one line whose
    metric is missing, with its status and reason.
    """
    identity = [name for name in IDENTITY if name in frame]
    metrics = [name for name in frame.columns if is_metric(name)]
    numbered = frame.reset_index(drop=True).reset_index(names="row")
    melted = numbered.melt(["row", "provenance", *identity], metrics, "metric", "value").dropna(subset="value")
    none = numbered[~numbered["row"].isin(melted["row"])][["row", "provenance", *identity]]
    lines = pd.concat([melted, none.assign(metric=None, value=float("nan"))], ignore_index=True)
    order = {name: number for number, name in enumerate(metrics)}
    lines = lines.assign(place=lines["metric"].map(order)).sort_values(["row", "place"], kind="stable")
    lines["unit"] = lines["metric"].map({name: COLUMNS[name].unit for name in metrics})
    fixed = {name: COLUMNS[name].provenance for name in metrics if COLUMNS[name].provenance != ROW}
    lines["provenance"] = lines["metric"].map(fixed).fillna(lines["provenance"])
    return lines[[*identity, *LONG]].reset_index(drop=True)
