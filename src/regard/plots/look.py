"""The look of every figure: its colours, its type, and the files it is saved as."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours stay apart under every common colour blindness; black is kept for the truth.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
TRUTH = "#000000"
POINTS = "#8A8A8A"
# One hue from paper white: no weight, no ink; and lightness alone carries the order.
WEIGHTS = "Blues"

RASTER_DPI = 200
STYLE = {
    "axes.grid": False,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",  # text stays text: searchable, editable, in the reader's font
    "svg.hashsalt": "regard",  # the same figure is the same file
    "xtick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.labelsize": 8,
    "ytick.major.width": 0.6,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the style of the house; without matplotlib, refuse and name the extra."""
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError as missing:
        raise RegardError(
            "plots",
            got=f"no module named {missing.name}",
            needed="matplotlib, which draws every figure",
            repair='Install it with pip install "regard[plots]".',
        ) from None
    with rc_context(STYLE):
        yield


def canvas(width: float, height: float, *, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure of width x height inches with its panels side by side, known to no window."""
    with house_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, list(figure.subplots(1, panels, squeeze=False)[0])


@contextmanager
def axes_or_new(ax: Axes | None) -> Iterator[Axes]:
    """Draw on the axes given, in whatever style holds there, or on a new figure of our own.

    A new figure is pyplot's, so that `plt.show()` finds it.
    """
    if ax is not None:
        yield ax
        return
    with house_style():
        from matplotlib import pyplot

        yield pyplot.subplots(layout="constrained")[1]


def save(figure: Figure, stem: Path | str) -> tuple[Path, Path]:
    """Write `stem`.svg for the page and `stem`.png for the screen; return both paths."""
    stem = Path(stem)
    vector, raster = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    with house_style():
        figure.savefig(vector, metadata={"Date": None})  # a date would make every run a new file
        figure.savefig(raster, dpi=RASTER_DPI)
    return vector, raster
