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
# Heights on a map: dark to light in even steps, and the same to every eye.
VALUES = "cividis"

RASTER_DPI = 200
FORMATS = (".svg", ".png", ".pdf")
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


def canvas(
    width: float, height: float, *, panels: int = 1, rows: int = 1, same_scales: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of width x height inches, known to no window, and its panels row by row.

    panels: how many stand side by side in each of the rows. same_scales: all panels share both axes, and only the
    outer ones are labelled.
    """
    with house_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        table = figure.subplots(rows, panels, squeeze=False, sharex=same_scales, sharey=same_scales)
        return figure, list(table.flat)


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


def make_folder(out: Path) -> None:
    """Make the folder that figures and their numbers go into, unless it is there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{out} ({refusal.strerror})",
            needed="a folder, or a path where one can be made",
            repair="Choose another path.",
        ) from None


def check_format(path: Path | str) -> None:
    """Refuse a file whose ending names no format that figures are saved in."""
    if Path(path).suffix.lower() not in FORMATS:
        raise RegardError(
            "out",
            got=f"{Path(path).name!r}",
            needed=f"a file name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            repair="The ending chooses the format of the figure.",
        )


def save_as(figure: Figure, path: Path | str) -> Path:
    """Write one file, in the format that its ending names."""
    check_format(path)
    path = Path(path)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with house_style():
        figure.savefig(path, metadata=undated.get(path.suffix.lower()), dpi=RASTER_DPI)
    return path
