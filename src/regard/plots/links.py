"""Attention weights as lines between two columns of tokens: one head, or several in their colours."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import RegardError
from regard.plots.look import COLOURS, axes_or_new, figure_of
from regard.plots.numbers import Numbers, as_number
from regard.plots.tokens import LINE, as_labels, check_tokens, text_widths, type_of
from regard.plots.weights import as_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches: a line of tokens, the space between the columns, and the tallest figure.
STEP, BETWEEN, TALLEST = 0.24, 2.4, 30.0
THICKEST = 3.2
# Points from the frame to what stands above the names of the columns.
TITLE = 17


def links(
    weights: Numbers,
    queries: Sequence[object],
    keys: Sequence[object],
    *,
    layer: int | None = None,
    batch: int | None = None,
    heads: Sequence[int] | None = None,
    threshold: float = 0.05,
    ax: Axes | None = None,
) -> Axes:
    """Draw a line from each query to the keys it attends to, thicker and darker for heavier; return the axes.

    Queries stand at the left and keys at the right, in the order of reading, so that a long sentence makes a long
    figure and every token stays upright.

    Args:
        weights: (queries, keys) or all heads, as `regard.plots.heads` takes them.
        queries: the tokens that ask.
        keys: the tokens that answer.
        layer: which layer of a tuple.
        batch: which sequence of a batch.
        heads: which heads, each in a colour of its own; the only one, or at most 6 of them. All by default, if they
            are no more.
        threshold: lighter lines are left out; how much weight they had together is said below.
        ax: where to draw; without it, a new figure, sized to its tokens.
    """
    table = as_heads(weights, layer=layer, batch=batch)
    check_tokens("queries", queries, table.shape[1])
    check_tokens("keys", keys, table.shape[2])
    lightest = as_number(threshold)
    if not 0 <= lightest <= 1:
        raise RegardError(
            "threshold", got=f"{threshold!r:.60}", needed="a weight from 0 to 1", repair="0 draws every line."
        )
    chosen = _chosen(heads, len(table))
    left, right = as_labels(queries), as_labels(keys)
    shown = table[chosen]
    with axes_or_new(ax) as drawn:
        style = type_of(left, right)
        if ax is None:
            _size(drawn, left, right, style)
        _tokens(drawn, left, right, style)
        for head, matrix, colour in zip(chosen, shown, COLOURS, strict=False):
            _lines(drawn, matrix, lightest, colour, f"head {head}")
        hidden = float(np.nansum(shown[shown < lightest]) / max(np.nansum(shown), 1e-30))
        note = f"{100 * hidden:.0f}% of the weight is in lines below {lightest:g}, not drawn"
        drawn.set_xlabel(note if hidden >= 0.005 else "", fontsize=7)
        drawn.set_title("query", loc="left", fontsize=8)
        drawn.set_title("key", loc="right", fontsize=8)
        if len(table) > 1:
            _legend(drawn, len(chosen))
    return drawn


def _legend(ax: Axes, count: int) -> None:
    """Above the names of the columns."""
    from matplotlib.transforms import offset_copy

    above = offset_copy(ax.transAxes, figure_of(ax), y=TITLE, units="points")
    columns = min(3, count)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), bbox_transform=above, ncols=columns, borderaxespad=0.0)


def _chosen(heads: Sequence[int] | None, count: int) -> list[int]:
    chosen: list[Any]
    try:
        chosen = list(range(count) if heads is None else heads)
    except TypeError:
        chosen = [heads]  # a single one, or nothing that could be one
    if not all(_is_head(head, count) for head in chosen) or not 1 <= len(chosen) <= len(COLOURS):
        raise RegardError(
            "heads",
            got=f"{count} heads and no choice" if heads is None else f"{chosen}",
            needed=f"1 to {len(COLOURS)} of them, from 0 to {count - 1}, so that colours stay apart",
            repair="Pass for example heads=[0, 1]; regard.plots.heads shows all.",
        )
    return [int(head) for head in chosen]


def _is_head(head: object, count: int) -> bool:
    return isinstance(head, Integral) and not isinstance(head, bool) and 0 <= int(head) < count


def _size(ax: Axes, left: list[str], right: list[str], style: dict[str, Any]) -> None:
    widest = [max(text_widths(ax, labels, style)) for labels in (left, right)]
    lines = max(len(left), len(right))
    figure_of(ax).set_size_inches(BETWEEN + sum(widest) + 0.5, min(TALLEST, STEP * lines + 0.8))


def _tokens(ax: Axes, left: list[str], right: list[str], style: dict[str, Any]) -> None:
    """Both columns share the height; the shorter one is spread over it."""
    lines = max(len(left), len(right))
    style = {**style, "fontsize": min(8.0, 8.0 * TALLEST / (LINE * lines))}
    ax.set_xlim(0, 1)
    ax.set_ylim(1.0, 0.0)
    ax.set_yticks(_heights(len(left)), left, **style)
    other = ax.secondary_yaxis("right")
    other.set_yticks(_heights(len(right)), right, **style)
    for axis in (ax, other):
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    ax.set_xticks([])


def _lines(ax: Axes, matrix: np.ndarray, threshold: float, colour: str, label: str) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D

    start, end = _heights(matrix.shape[0]), _heights(matrix.shape[1])
    rows, columns = np.nonzero(matrix >= max(threshold, 1e-12))
    order = np.argsort(matrix[rows, columns])  # the heaviest on top
    rows, columns = rows[order], columns[order]
    strength = np.clip(matrix[rows, columns], 0.0, 1.0)
    segments = [[(0.0, start[row]), (1.0, end[column])] for row, column in zip(rows, columns, strict=True)]
    shades = [(*to_rgb(colour), 0.15 + 0.8 * part) for part in strength]
    ax.add_collection(LineCollection(segments, linewidths=0.3 + THICKEST * strength, colors=shades))
    ax.add_line(Line2D([], [], color=colour, linewidth=THICKEST / 2, label=label))


def _heights(count: int) -> np.ndarray:
    return (np.arange(count) + 0.5) / count
