"""How large the cells of a table are, so that the tokens beside them have room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.plots.look import figure_of
from regard.plots.tokens import LEVELS, LINE, cell_needed, text_widths, type_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches: the least of a column, the most of one that its name asks for, and the least and most of a row.
NARROWEST, WIDEST, LOWEST, HIGHEST = 0.22, 0.9, 0.18, 0.34
# All columns together, at most, where their names stand on one level, on two, on three.
ROOM = (7.0, 9.0, 14.0)
LARGEST = 18.0
# So much for all columns, or rows, that have no names: they need not be told apart one by one.
UNNAMED = 6.0
# A figure of few cells is so large all the same; the names of the axes and the colour bar take so much.
LEAST_WIDTH, LEAST_HEIGHT = 2.0, 1.2
NAMES, BAR = 0.45, 0.9


class Cells(NamedTuple):
    """Inches of a column and of a row, and how tokens are set beside them."""

    column: float
    row: float
    style: dict[str, Any]


def cells_on(ax: Axes, shape: tuple[int, ...], down: Sequence[str] | None, across: Sequence[str] | None) -> Cells:
    """Those of axes that somebody else has made: shape (rows, columns), down and across their labels."""
    extent, dpi = ax.get_window_extent(), ax.figure.dpi
    return Cells(extent.width / dpi / shape[1], extent.height / dpi / shape[0], type_of(down, across))


def fit_figure(
    ax: Axes,
    shape: tuple[int, ...],
    down: Sequence[str] | None,
    across: Sequence[str] | None,
    *,
    bar: bool,
    above: float = 0.0,
) -> Cells:
    """Give a figure of our own the inches that its cells and their names take; above: what stands on top of it."""
    rows, columns = shape
    style = type_of(down, across)
    if across is None:
        column, levels = min(NARROWEST, UNNAMED / columns), 1
    else:
        column, levels = _column(text_widths(ax, across, style))
    row = max(LOWEST, min(column, HIGHEST))
    row = min(row, (UNNAMED if down is None else LARGEST) / rows)
    column, row = max(column, LEAST_WIDTH / columns), max(row, (LEAST_HEIGHT if bar else LOWEST) / rows)
    beside = _widest(ax, down, style)
    overhang = max(0.1, _widest(ax, None if across is None else across[-1:], style) / 2 - column / 2)
    width = columns * column + beside + overhang + NAMES + BAR * bar
    figure_of(ax).set_size_inches(width, rows * row + levels * LINE + NAMES + above)
    return Cells(column, row, style)


def _widest(ax: Axes, labels: Sequence[str] | None, style: Mapping[str, Any]) -> float:
    return 0.2 if labels is None else max(text_widths(ax, labels, style))


def _column(widths: Sequence[float]) -> tuple[float, int]:
    """Inches for each column, and the levels of names that need them."""
    count = len(widths)
    for levels, room in zip(range(1, LEVELS + 1), ROOM, strict=True):
        needed = max(NARROWEST, cell_needed(widths, levels))
        if needed <= WIDEST and needed * count <= room:
            return needed, levels
    return min(max(NARROWEST, cell_needed(widths, LEVELS)), LARGEST / count), LEVELS
