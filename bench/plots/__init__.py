"""Plots of a run."""

from collections.abc import Sequence

from bench.plots.plot import Plot
from bench.record import Record


def plots(records: Sequence[Record]) -> list[Plot]:
    """Return the plots that the rows have numbers for."""
    return []
