"""The launches of one cell -> one line: medians, spread, how many there are, and what became of the others.

Different cells are never combined. A line has the settings of its cell, and of metrics the median over the launches
that completed and are not known to be wrong.
"""

import pandas as pd

from bench.analysis.columns import COLUMNS, is_metric

# What tells lines apart: the cell, the stack that it asked for, and, where several runs are together, the run.
_KEYS = ("run", "cell_id", "requested_stack")
# Of one launch, and in no line of several.
_OF_A_LAUNCH = {
    *("repeat", "started_at", "reason", "status", "validity_reasons", "timing_suspect_reasons", "figures_suspect")
}
_VERDICTS = ("invalid", "suspect", "unchecked", "valid")  # the worst first
_RANK = {word: rank for rank, word in enumerate(_VERDICTS)}


def keys(frame: pd.DataFrame) -> list[str]:
    """Return the columns that tell the cells of ``frame`` apart."""
    return [name for name in _KEYS if name in frame]


def presentable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose numbers may be shown: completed, and not known to be wrong."""
    return rows[(rows["status"] == "completed") & (rows["validity"] != "invalid")]


def _spread(good: pd.DataFrame, number: pd.Series) -> pd.DataFrame:
    """Return how far the launches of a cell are apart in step time; missing without a time, or of one launch."""
    times = good.get("step_time_s", pd.Series(float("nan"), index=good.index)).groupby(number)
    iqr = times.quantile(0.75) - times.quantile(0.25)
    return pd.DataFrame(
        {
            "step_time_launch_iqr_s": iqr.where(times.count() > 1),
            "step_time_min_s": times.min(),
            "step_time_max_s": times.max(),
        }
    )


def _doubts(good: pd.DataFrame, number: pd.Series) -> pd.DataFrame:
    """Return what is doubted of the launches that are shown."""
    late = good.get("timing_suspect_reasons", pd.Series("", index=good.index)).fillna("").astype(bool)
    doubts = {
        "figures_suspect": good["figures_suspect"].astype(bool),
        "training_suspect": good["validity"] == "suspect",
        "times_suspect": late,
    }
    return pd.DataFrame({name: doubt.groupby(number).any() for name, doubt in doubts.items()})


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one line per cell, in the order in which they first appear.

    Its columns are those of the frame but a launch's own, and the launches, outcome, spread and doubts of
    bench.analysis.columns.COMPARISON.
    """
    number = frame.groupby(keys(frame), sort=False, dropna=False).ngroup()
    good = presentable(frame)
    bad = frame.drop(good.index)
    metrics = [name for name in frame.columns if is_metric(name)]
    theory = [name for name in metrics if COLUMNS[name].provenance == "theory"]
    settings = [name for name in frame.columns if name not in {*_OF_A_LAUNCH, *metrics}]
    # The settings of a line are those of a launch that is shown, where there is one: a failed one may lack some.
    shown_first = pd.concat([good, bad])
    lines = shown_first[settings].groupby(number).head(1)
    lines = lines.set_axis(number[lines.index]).sort_index()
    shown = good.groupby(number)
    # A row that is completed and yet not good is invalid; that is the word for it.
    words = (
        bad["status"].replace("completed", "invalid").groupby(number).agg(lambda found: "/".join(dict.fromkeys(found)))
    )
    lines["launches"] = shown.size()
    lines["launches_failed"] = bad.groupby(number).size()
    lines = lines.fillna({"launches": 0, "launches_failed": 0}).astype(
        {"launches": "int64", "launches_failed": "int64"}
    )
    lines["outcome"] = words.astype("str")
    lines["outcome"] = lines["outcome"].fillna("completed")
    lines["validity"] = frame["validity"].map(_RANK).where(frame.index.isin(good.index)).groupby(number).min()
    lines["validity"] = lines["validity"].map(dict(enumerate(_VERDICTS))).fillna("invalid")
    lines.loc[(lines["launches"] == 0) & (lines["outcome"] != "invalid"), "validity"] = "unchecked"
    doubts = _doubts(good, number).reindex(lines.index, fill_value=False)
    measured = shown[[name for name in metrics if name not in theory]].median()
    return pd.concat([lines, measured, frame[theory].groupby(number).median(), _spread(good, number), doubts], axis=1)
