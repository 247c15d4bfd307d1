"""Hold emulated ranks against real gloo ranks over the full cross, and print docs/emulation.md's table of it.

    PYTHONPATH=. python tests/integration/emulation_table.py > table.md

96 cells, real runs of two and four ranks: about 20 minutes on two cores.
"""

import sys
from contextlib import redirect_stdout
from itertools import product

from agreement import MODELS, STRATEGIES, WORLD_SIZES, cross, emulated, real
from forked import Ranks, planned

FIGURES = ("init_peak_bytes", "steady_bytes", "peak_allocated_bytes")
HEAD = (
    *("model", "strategy", "GPUs", "cells", "ranks compared", "collectives per step", "sequences equal"),
    *("memory points equal", "largest difference of init peak / steady / peak (bytes)"),
)


def line(ranks, model, strategy, world_size):
    """Return one line of the table: what the cells of a model, strategy and world size have in common."""
    cells = cross(model, strategy, world_size)
    pairs = []
    for settings in cells:
        measured = real(ranks, settings)
        pairs += [(one, emulated(ranks, settings, rank)) for rank, one in enumerate(measured)]

    def equal(key):
        return f"{sum(one[key] == other[key] for one, other in pairs)} of {len(pairs)}"

    lengths = [len(one["collectives"]) for one, _ in pairs]
    counts = f"{min(lengths)}-{max(lengths)}" if min(lengths) < max(lengths) else str(lengths[0])
    worst = " / ".join(str(max(abs(one[figure] - other[figure]) for one, other in pairs)) for figure in FIGURES)
    return model, strategy, world_size, len(cells), len(pairs), counts, equal("collectives"), equal("points"), worst


def row(values):
    return f"| {' | '.join(map(str, values))} |"


def main():
    lines = list(product(MODELS, STRATEGIES, WORLD_SIZES))
    with Ranks([planned(**settings) for each in lines for settings in cross(*each)]) as ranks:
        with redirect_stdout(sys.stderr):  # what they say is no part of the table
            ranks.agents()
        print(row(HEAD), row(["---"] * len(HEAD)), sep="\n", flush=True)
        for each in lines:
            print(row(line(ranks, *each)), flush=True)


if __name__ == "__main__":
    main()
