"""What `zerostage report --plots` prints."""

from pathlib import Path

from rich.console import Console
from rich.progress import track

from bench.errors import StoreError
from bench.plots import plots, save
from bench.runs import read_measured


def show_plots(run: Path, folder: Path, console: Console) -> None:
    """Draw all plots of a run into ``folder``, and print what is drawn.

    Raises:
        StoreError: the run has no measured or emulated row with a number, or the folder cannot be written.
    """
    found = plots(read_measured(run)[1])
    if not found:
        raise StoreError(f"{run}: no row has a number to draw; 'zerostage report {run}' says what became of them")
    shown = Console(stderr=True)
    save(track(found, "drawing", console=shown, transient=True, disable=not shown.is_terminal), folder)
    for plot in found:
        console.print(f"{folder / plot.name}.svg, .png: {plot.title}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{folder / 'plots.md'}: all of them, with their captions", highlight=False, soft_wrap=True)
