"""Plots as files: an SVG and a PNG of each, on white, with title and caption in the picture."""

import io
import textwrap
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from bench.errors import StoreError
from bench.plots.plot import Plot
from bench.plots.style import settings
from bench.plots.svg import printable

_DPI = 150
_TITLE_SIGNS, _CAPTION_SIGNS = 72, 126


def save(plots: Iterable[Plot], folder: Path) -> list[Path]:
    """Write ``NAME.svg`` and ``NAME.png`` of each plot, and the captions as ``plots.md``; return the paths.

    Raises:
        StoreError: the folder cannot be made or written.
    """
    written: list[Path] = []
    texts = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            for kind, content in _pictures(plot).items():
                path = folder / f"{plot.name}.{kind}"
                path.write_bytes(content)
                written.append(path)
            texts.append(f"## {_inert(plot.title)}\n\n![]({plot.name}.svg)\n\n{_inert(plot.caption)}\n")
        path = folder / "plots.md"
        path.write_text("\n".join(["# Plots\n", *texts]), encoding="utf-8")
        written.append(path)
    except OSError as error:
        raise StoreError(f"{folder}: plots cannot be written there ({error.strerror}); name another folder") from None
    return written


def _inert(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in printable(text))


def _pictures(plot: Plot) -> dict[str, bytes]:
    figure, found = plot.draw(), {}
    without: dict[str, dict[str, None]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with settings():
        _captioned(figure, plot)
        for kind, metadata in without.items():
            target = io.BytesIO()
            figure.savefig(
                target,
                format=kind,
                dpi=_DPI,
                facecolor="white",
                metadata=metadata,
                bbox_inches="tight",
                pad_inches=0.12,
            )
            found[kind] = target.getvalue()
    return found


def _captioned(figure: Figure, plot: Plot) -> None:
    """Put title and caption above and below the plot: the picture may travel without its page."""
    title = textwrap.fill(printable(plot.title), _TITLE_SIGNS)
    text = textwrap.fill(printable(plot.caption), _CAPTION_SIGNS)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is made; what comes now is outside of it
    for legend in figure.legends:
        box = legend.get_window_extent().transformed(figure.transFigure.inverted())
        legend.borderaxespad = 0
        legend.set_loc("lower left")
        legend.set_bbox_to_anchor((box.x0, box.y0), transform=figure.transFigure)
    gap = 0.08 / figure.get_size_inches()[1]
    figure.text(0.01, 1 + gap, title, va="bottom", fontsize=10.5, weight="bold")
    figure.text(0.01, -gap, text, va="top", fontsize=7, linespacing=1.3)
