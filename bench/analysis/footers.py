"""What stands below the tables: definitions, where the numbers come from, failures and doubts."""

from typing import Any

import pandas as pd

from bench.analysis.cells import keys, presentable
from bench.analysis.comparison import BASELINE
from bench.analysis.stacks import stack_notes
from bench.analysis.tables import metrics_of
from bench.analysis.titles import several_runs
from bench.zero.applicability import ignored_notes
from bench.zero.stages import STRATEGIES, VARIANTS, strategy_names

NO_MULTI_GPU = "No multi-GPU row has been measured here."


def multi_gpu(provenance: str, device: str, world_size: int, status: str) -> bool:
    """Whether two or more real GPUs have trained together in a row."""
    return (provenance, device, status) == ("measured", "cuda", "completed") and world_size > 1


def _provenance(frame: pd.DataFrame) -> list[str]:
    """Return where the numbers come from."""
    lines = []
    measured, emulated = (frame[frame["provenance"] == kind] for kind in ("measured", "emulated"))
    if not measured.empty:
        names = ", ".join(sorted(measured["device_name"].dropna().unique()))
        lines.append(
            f"Every number outside a 'paper' column is measured, on {', '.join(sorted(measured['device'].unique()))}"
            + (f" ({names})" if names else "")
            + (", where the heading does not say emulated" if not emulated.empty else "")
            + ". N is the number of ranks, one per GPU; on cpu a rank is one process on one core."
        )
    if not emulated.empty:
        lines.append(
            "Emulated: DeepSpeed's own code ran as one rank of N in one process, on tensors without memory. Peak "
            "memory and traffic are that rank's; nothing was timed. docs/emulation.md says what this cannot know."
        )
    rows = zip(*(frame[name] for name in ("provenance", "device", "world_size", "status")), strict=True)
    return lines + ([] if any(multi_gpu(*row) for row in rows) else [NO_MULTI_GPU])


def _labels(rows: pd.DataFrame) -> str:
    """Return the names of the rows of a note, each once, of several runs with the run."""
    names = rows["run"] + ": " + rows["label"] if several_runs(rows) else rows["label"]
    return ", ".join(dict.fromkeys(names))


def _ratios(frame: pd.DataFrame) -> str:
    """Return what ratios are to."""
    if several_runs(frame):
        first = frame["run"].iloc[0]
        return f"'vs {first}' is the ratio to the row of the same strategy, and the same N, in {first}."
    return f"'vs {BASELINE}' is the ratio to the {BASELINE} row (where there is none, to the first row) at the same N."


def _launches(measured: pd.DataFrame) -> list[str]:
    """Return how many launches stand behind a number."""
    if measured.empty:
        return []
    launches = presentable(measured).groupby(keys(measured), dropna=False).size()
    if launches.empty:
        return []
    least, most = launches.min(), launches.max()
    return [
        f"Launches per cell: {most if least == most else f'{least} to {most}'}"
        + (" (median shown)" if most > 1 else "")
        + (
            ". Steps of one launch are not independent: below 3 launches, a difference in speed is not separated."
            if least < 3
            else "."
        )
    ]


def _strategies(frame: pd.DataFrame) -> str:
    """Return what the stages are, all of them, and what each further strategy of the tables is."""
    present = {name.split("+")[0] for name in frame["strategy"]}
    known = [f"{s.name} = {s.definition}" for s in STRATEGIES.values()]
    known += [f"{v.name} = {v.definition}" for v in VARIANTS.values() if v.name in present]
    files = frame[~frame["strategy"].str.split("+").str[0].isin(strategy_names())]
    known += [
        f"{name} = a configuration file, {bases.iloc[0]}"
        for name, bases in files.groupby("strategy", sort=False)["base_strategy"]
    ]
    return f"Strategies: {'; '.join(known)}."


def footers(frame: pd.DataFrame, zero_optimization: dict[str, Any]) -> list[str]:
    """Return what a reader must know to read the tables: definitions, kind of number, failures, doubts."""
    lines = [f"{metric.title}: {metric.definition}." for metric in metrics_of(frame["provenance"])]
    lines.append(
        _ratios(frame)
        + " Rows of one N have one global batch"
        + (", but at the largest that fits." if frame["largest_batch"].any() else ".")
    )
    lines += stack_notes(frame, BASELINE)
    lines += _provenance(frame)
    if "memory_kind" in frame and (counted := sorted(frame["memory_kind"].dropna().unique())):
        lines.append(f"Allocated bytes are counted as: {', '.join(counted)}.")
    if "wire_model" in frame and (models := sorted(frame["wire_model"].dropna().unique())):
        lines.append(f"Wire model: {', '.join(models)} (docs/metrics.md).")
    if zero_optimization:
        settings = ", ".join(
            f"{key} {'/'.join(map(str, value)) if isinstance(value, list | tuple) else value}"
            for key, value in zero_optimization.items()
        )
        lines.append(f"Not DeepSpeed's defaults: zero_optimization {settings}.")
        lines += [f"{note}." for note in ignored_notes(zero_optimization, frame["base_strategy"])]
    lines.append(_strategies(frame))
    if "offload_host_peak_bytes" in frame:
        lines.append(
            "Rows with an offloaded optimizer step torch's AdamW on the CPU, as all rows do on their device; "
            "DeepSpeedCPUAdam, which transformers puts in its place, is not measured."
        )
    lines += _launches(frame[frame["provenance"] == "measured"])
    done = frame[(frame["status"] == "completed") & (frame["provenance"] == "measured")]
    if valid := int((done["validity"] == "valid").sum()):
        lines.append(
            f"{valid} of {len(done)} completed rows are valid: loss and gradient norms agree with a plain-PyTorch run "
            "of the same batches, the state is sharded as the stage says, the engine runs what was asked "
            "(docs/metrics.md)."
        )
    emulated = frame[(frame["status"] == "completed") & (frame["provenance"] == "emulated")]
    if passed := int((emulated["validity"] == "valid").sum()):
        lines.append(
            f"{passed} of {len(emulated)} emulated rows are valid: the state is sharded as the stage says, the engine "
            "runs what was asked, traffic and memory are as predicted where there is a prediction (docs/emulation.md)."
        )
    unchecked = done[done["validity"] == "unchecked"]
    lines += [
        f"unchecked: {reasons} [{_labels(group)}]"
        for reasons, group in unchecked.groupby("validity_reasons", sort=False)
    ]
    if "timing_suspect_reasons" in frame:
        late = frame[frame["timing_suspect_reasons"].fillna("").astype(bool)]
        lines += [
            f"? times are suspect: {why} [{_labels(group)}]"
            for why, group in late.groupby("timing_suspect_reasons", sort=False)
        ]
    doubtful = frame[frame["validity"].isin(["suspect", "invalid"])]
    said = ["validity", "figures_suspect", "validity_reasons"]
    for (verdict, figures, reasons), group in doubtful.groupby(said, sort=False):
        words = verdict if verdict == "invalid" else "? suspect" if figures else "† trains otherwise"
        lines.append(f"{words}: {reasons} [{_labels(group)}]")
    failed = frame[frame["status"] != "completed"]
    if not failed[failed["status"] != "skipped"].empty:
        lines.append(
            "A failed row stays; logs/ in the run folder has its output, and --rerun CELL the command to repeat it."
        )
    for (status, reason), group in failed.groupby(["status", "reason"], sort=False):
        lines.append(f"{status}: {reason} [{_labels(group)}]")
    return lines
