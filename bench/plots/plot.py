"""What a plot is: drawn on demand, as SVG for a page or as files."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """``name`` is a file stem, unique in a run; ``caption`` says what is shown, of how many launches, with what spread
    and from where (measured, emulated, modelled, theory). ``draw`` makes a new figure each time.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]
