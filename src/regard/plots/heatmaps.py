"""Attention weights as a heatmap: a row per query, a column per key."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from regard.errors import RegardError
from regard.plots.look import WEIGHTS, axes_or_new
from regard.plots.numbers import Numbers, as_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 40


def heatmap(
    weights: Numbers,
    *,
    queries: Sequence[object] | None = None,
    keys: Sequence[object] | None = None,
    darkest: float | None = None,
    bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention weights, darker for heavier; return the axes.

    Args:
        weights: (queries, keys), one head of one sequence; a tensor on any device or an array.
        queries: a label for each row, the tokens that ask; without them rows are numbered.
        keys: a label for each column, the tokens that answer; without them columns are numbered.
        darkest: the weight drawn darkest, so that several heatmaps compare; without it, the heaviest.
        bar: whether a colour bar stands beside it.
        ax: where to draw; without it, a new figure.
    """
    table = as_array("weights", weights, axes=("queries", "keys"))
    _check_labels("queries", queries, table.shape[0])
    _check_labels("keys", keys, table.shape[1])
    with axes_or_new(ax) as drawn:
        image = drawn.imshow(table, cmap=WEIGHTS, vmin=0.0, vmax=darkest, aspect="auto", interpolation="none")
        drawn.set_xlabel("key")
        drawn.set_ylabel("query")
        if keys is not None:
            drawn.set_xticks(*_ticks(keys), rotation=90)
        if queries is not None:
            drawn.set_yticks(*_ticks(queries))
        if bar:
            scale = drawn.figure.colorbar(image, ax=drawn, label="weight", fraction=0.05, pad=0.02)
            scale.outline.set_visible(False)
    return drawn


def _check_labels(argument: str, labels: Sequence[object] | None, needed: int) -> None:
    if labels is not None and len(labels) != needed:
        raise RegardError(
            argument,
            got=f"{len(labels)} labels",
            needed=f"{needed}, as many as weights has {argument}",
            repair="Pass one label per token, padding included, or cut the weights to the tokens.",
        )


def _ticks(labels: Sequence[object]) -> tuple[list[int], list[str]]:
    """Positions and texts, thinned so that they do not run into each other."""
    positions = list(range(0, len(labels), ceil(len(labels) / MOST_LABELS)))
    return positions, [str(labels[position]) for position in positions]
