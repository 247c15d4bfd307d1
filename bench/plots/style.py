"""How plots look: a colour and a marker per strategy, a colour and a hatch per kind of bytes; nothing by colour alone.

Colours are Okabe and Ito's (Color Universal Design, https://jfly.uni-koeln.de/color/); black is left out, for a page
may be dark.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style

from bench.analysis.comparison import in_order
from bench.record import Record

# What svg_text turns into the colour of the page's text. It is also dark enough on white.
INK = "#010203"
EDGE = "#222222"
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, GREY, LIGHT = (
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#f0e442",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
    "#999999",
    "#d9d9d9",
)

_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "zerostage",
    "text.color": INK,
    "text.parse_math": False,  # a model may be called $x^2$
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
}


@contextmanager
def settings() -> Iterator[None]:
    """Draw and write with these settings and no others, whatever the user's matplotlibrc says."""
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        # A name in a script that matplotlib's font has not: the page's font may have it, and a PNG shows boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@dataclass(frozen=True)
class Look:
    """How a strategy is drawn, in every plot of a run."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]


_COLOURS = {"ddp": GREY, "fsdp2": PURPLE, "z0": ORANGE, "z1": SKY, "z2": GREEN, "z3": BLUE}
_MARKERS = {"ddp": "X", "fsdp2": "P", "z0": "o", "z1": "s", "z2": "^", "z3": "D"}
_MORE = ("v", "<", ">", "p", "h", "*", "8", "d", "H")
_LINES: tuple[str | tuple[int, tuple[int, ...]], ...] = (
    "solid",
    (0, (5, 2)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (8, 3)),
)


def looks(records: Iterable[Record]) -> dict[str, Look]:
    """Return the look of each strategy: the colour of its stage, a marker and a line that no other has.

    With more than 15 strategies markers come again, with other lines.
    """
    bases = {record.cell.strategy_name: record.cell.strategy for record in records}
    free = iter([*_MORE, *(marker for _ in range(len(bases)) for marker in (*_MORE, *_MARKERS.values()))])
    found: dict[str, Look] = {}
    for number, name in enumerate(in_order(bases)):
        marker = _MARKERS[name] if name in _MARKERS else next(free)
        found[name] = Look(_COLOURS[bases[name]], marker, _LINES[number % len(_LINES)])
    return found


@dataclass(frozen=True)
class Fill:
    """How a part of a bar is drawn."""

    colour: str
    hatch: str | None = None


# By the categories of bench.zero.memory: the hue says what it belongs to, the hatch tells those of one hue apart.
CATEGORY_FILLS = {
    "parameters": Fill(BLUE),
    "gradients": Fill(ORANGE),
    "optimizer_states": Fill(GREEN, "//"),
    "zero_buckets": Fill(PURPLE),
    "bucket_copies": Fill(PURPLE, "xx"),
    "offload_buffers": Fill(PURPLE, "--"),
    "secondary_parameters": Fill(SKY, "xx"),
    "gathered_parameters": Fill(SKY, "\\\\"),
    "persisted_parameters": Fill(SKY, "||"),
    "activations": Fill(YELLOW, "--"),
    "logits_loss": Fill(VERMILLION),
    "backward_temporaries": Fill(GREY, "++"),
    "step_temporaries": Fill(GREY, "\\\\"),
    "other": Fill(LIGHT),
    "not decomposed": Fill(LIGHT, "//"),
}
_OPS = {
    "all_reduce": ORANGE,
    "reduce_scatter_tensor": GREEN,
    "all_gather_into_tensor": BLUE,
    "reduce": YELLOW,
    "broadcast": PURPLE,
    "all_to_all_single": LIGHT,
}
_PHASES = {"forward": "--", "backward": None, "step": "//"}


def op_fill(phase: str, op: str) -> Fill:
    """Return the fill of one operation of one phase: hue by operation, hatch by phase."""
    return Fill(_OPS.get(op, GREY), _PHASES.get(phase, "xx"))
