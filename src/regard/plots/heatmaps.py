"""Attention weights as a heatmap: a row per query, a column per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import RegardError
from regard.plots.cells import Cells, cells_on, fit_figure
from regard.plots.look import axes_or_new, canvas, house_style, weight_colours
from regard.plots.numbers import Numbers, as_array, as_number
from regard.plots.tokens import as_labels, check_tokens, name_columns, name_rows, set_as_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Checked = tuple[np.ndarray, list[str] | None, list[str] | None]


def heatmap(
    weights: Numbers,
    *,
    queries: Sequence[object] | None = None,
    keys: Sequence[object] | None = None,
    names: tuple[str, str] = ("query", "key"),
    darkest: float | None = None,
    bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention weights, darker for heavier; return the axes.

    Args:
        weights: (queries, keys), one head of one sequence; a tensor on any device or an array.
        queries: a label for each row, the tokens that ask; without them rows are numbered.
        keys: a label for each column, the tokens that answer; without them columns are numbered. Names stand upright,
            on up to three levels; where even these have no room, every second, third, … is named.
        names: what a row and a column are called.
        darkest: the weight drawn darkest, so that several heatmaps compare; without it, the heaviest.
        bar: whether a colour bar stands beside it.
        ax: where to draw; without it, a new figure, sized to its tokens.
    """
    table, down, across = _checked(weights, queries, keys)
    check_darkest(darkest)
    with axes_or_new(ax) as drawn:
        if ax is None:
            cells = fit_figure(drawn, table.shape, down, across, bar=bar)
        else:
            cells = cells_on(drawn, table.shape, down, across)
        _draw(drawn, table, (down, across), cells, names, darkest, bar)
    return drawn


def heatmap_apart(
    weights: Numbers, *, queries: Sequence[object], keys: Sequence[object], names: tuple[str, str], darkest: float
) -> Figure:
    """The same on a figure that no window knows: for pictures that a program writes one after the other."""
    table, down, across = _checked(weights, queries, keys)
    figure, (drawn,) = canvas(1, 1)
    with house_style():
        cells = fit_figure(drawn, table.shape, down, across, bar=True)
        _draw(drawn, table, (down, across), cells, names, darkest, True)
    return figure


def _checked(weights: Numbers, queries: Sequence[object] | None, keys: Sequence[object] | None) -> _Checked:
    table = as_array("weights", weights, axes=("queries", "keys"))
    check_tokens("queries", queries, table.shape[0])
    check_tokens("keys", keys, table.shape[1])
    down, across = (None if tokens is None else as_labels(tokens) for tokens in (queries, keys))
    return table, down, across


def _draw(
    drawn: Axes,
    table: np.ndarray,
    labels: tuple[list[str] | None, list[str] | None],
    cells: Cells,
    names: tuple[str, str],
    darkest: float | None,
    bar: bool,
) -> None:
    """labels: of the rows and of the columns."""
    down, across = labels
    paint(drawn, table, darkest)
    drawn.locator_params(integer=True, min_n_ticks=1)
    drawn.set_ylabel(names[0])
    drawn.set_xlabel(names[1])
    set_as_words(drawn.yaxis.label, drawn.xaxis.label)
    if across is not None:
        name_columns(drawn, across, cells.column, cells.style)
    if down is not None:
        name_rows(drawn, down, cells.row, cells.style)
    if bar:
        scale = drawn.figure.colorbar(drawn.images[-1], ax=drawn, label="weight", fraction=0.05, pad=0.02)
        scale.outline.set_visible(False)


def paint(ax: Axes, table: np.ndarray, darkest: float | None) -> None:
    """The cells alone: 0 is the page, and so is what is not a number."""
    most = heaviest(table) if darkest is None else darkest
    ax.imshow(table, cmap=weight_colours(ax), vmin=0.0, vmax=most, aspect="auto", interpolation="none")


def heaviest(table: np.ndarray) -> float:
    """The largest weight; 1 where none is above 0, so that 0 stays the page."""
    most = float(table[np.isfinite(table)].max(initial=0.0))
    return most if most > 0 else 1.0


def check_darkest(darkest: float | None) -> None:
    """Refuse a scale that has no end above 0."""
    if darkest is not None and not 0 < as_number(darkest) < np.inf:
        raise RegardError(
            "darkest",
            got=f"{darkest!r:.60}",
            needed="a weight above 0",
            repair="Pass 1.0, or leave it out for the heaviest.",
        )
