"""zerostage: which ZeRO stage, on how many GPUs, and did this change make it worse?"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pandas takes a second to import; ranks and the command line do without
    import pandas as pd

__version__ = "0.1.0"


def load(*runs: str | PathLike[str]) -> "pd.DataFrame":
    """Return the metrics of one or several runs as a tidy frame: one line per metric of a record (docs/metrics.md).

    ``metric value unit provenance`` beside the settings, status and validity of the row; several runs are told
    apart by ``run``. ``frame[frame.metric == "peak_allocated_bytes"]`` is ready for seaborn.

    Raises:
        bench.errors.StoreError: a folder is no run, or one of its records is damaged.
    """
    from importlib import import_module  # the import rules: what a rank imports never leads to pandas

    frame: pd.DataFrame = import_module("bench.loading").load(runs)
    return frame
