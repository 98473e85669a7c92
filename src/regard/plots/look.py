"""The look of every figure: its colours and its type, on paper and on a dark page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colours stay apart under every common colour blindness; black is kept for the truth.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
TRUTH = "#000000"
POINTS = "#8A8A8A"
# One hue from paper white: no weight, no ink; and lightness alone carries the order.
WEIGHTS = "Blues"
# The same on a dark page: from the page to light, so that no weight is no light.
NIGHT = "#131416"
LIGHT = "#E6E7E9"
WEIGHTS_BY_NIGHT = (NIGHT, "#123A57", "#1E6A9E", "#56B4E9", "#D3ECFA")
# Heights on a map: dark to light in even steps, and the same to every eye.
VALUES = "cividis"

STYLE = {
    "axes.grid": False,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.figsize": (5.6, 3.6),
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
BY_NIGHT = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), NIGHT),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), LIGHT),
    "axes.edgecolor": "#7A7D82",
}


@contextmanager
def house_style(dark: bool | None = None) -> Iterator[None]:
    """Draw in the style of the house; without matplotlib, refuse and name the extra.

    dark: light on a dark page. Without it, as matplotlib is set: its style "dark_background" is enough.
    """
    _require_matplotlib()
    from matplotlib import rc_context, rcParams

    if pyplot := sys.modules.get("matplotlib.pyplot"):
        # Loads its backend if it is not loaded yet: what a notebook's backend sets then, such as that figures are
        # shown at all, would be undone at the end of the style.
        pyplot.draw_if_interactive()
    by_night = _is_dark(rcParams["figure.facecolor"]) if dark is None else dark
    with rc_context({**STYLE, **(BY_NIGHT if by_night else {})}):
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
    with new_panels(1) as (drawn,):
        yield drawn


@contextmanager
def new_panels(count: int, *, columns: int | None = None, same_scales: bool = False) -> Iterator[list[Axes]]:
    """New axes of our own, row by row, on a figure that pyplot knows; columns: how many stand in a row."""
    _require_matplotlib()
    from matplotlib import pyplot

    with house_style():
        columns = count if columns is None else min(columns, count)
        rows = -(-count // columns)
        figure, table = pyplot.subplots(
            rows, columns, squeeze=False, layout="constrained", sharex=same_scales, sharey=same_scales
        )
        panels = list(table.flat)
        for spare in panels[count:]:
            spare.set_visible(False)
        try:
            yield panels[:count]
        except BaseException:
            pyplot.close(figure)  # what is refused leaves no figure behind
            raise


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as missing:
        raise RegardError(
            "plots",
            got=f"no module named {missing.name}",
            needed="matplotlib, which draws every figure",
            repair='Install it with pip install "regard[plots]".',
        ) from None


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line of that number: beyond the colours that stay apart, dashes tell lines apart."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def figure_of(ax: Axes) -> Figure:
    """The whole figure that these axes are in."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def weight_colours(ax: Axes) -> str | Colormap:
    """The colours of weights on these axes: from the page to ink, or to light where the page is dark."""
    if not is_dark(ax):
        return WEIGHTS
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights by night", WEIGHTS_BY_NIGHT)


def ink(ax: Axes) -> str:
    """The colour of the truth on these axes: black, or nearly white where the page is dark."""
    return LIGHT if is_dark(ax) else TRUTH


def is_dark(ax: Axes) -> bool:
    """Whether the page behind these axes is dark."""
    return _is_dark(ax.get_facecolor())


def _is_dark(colour: object) -> bool:
    from matplotlib.colors import to_rgba

    red, green, blue, opacity = to_rgba(colour)  # pyrefly: ignore
    return opacity > 0 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
