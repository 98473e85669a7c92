"""All heads of a layer side by side, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.checks import check_int
from regard.errors import RegardError
from regard.plots.heatmaps import check_darkest, heaviest, paint
from regard.plots.look import figure_of, new_panels
from regard.plots.numbers import Numbers
from regard.plots.tokens import as_labels, check_tokens, name_columns, name_rows, set_as_words, type_of, with_step
from regard.plots.weights import as_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4
# Inches: a panel at its smallest and largest, and a cell between.
SMALLEST, LARGEST, CELL = 1.3, 3.4, 0.2


def heads(
    weights: Numbers,
    *,
    layer: int | None = None,
    batch: int | None = None,
    queries: Sequence[object] | None = None,
    keys: Sequence[object] | None = None,
    names: Sequence[str] | None = None,
    columns: int = COLUMNS,
    darkest: float | None = None,
) -> list[Axes]:
    """Draw every head of one sequence as a heatmap of its own, on one scale with one bar; return their axes.

    Args:
        weights: (heads, queries, keys), (batch, heads, queries, keys), or a tuple with one of these for each layer, as
            nn.MultiheadAttention and Hugging Face's models return them; see `regard.plots.weights`.
        layer: which layer of a tuple.
        batch: which sequence of a batch.
        queries: a label for each row; named at the left edge.
        keys: a label for each column; named at the lower edge.
        names: a title for each head; "head 0" and so on by default.
        columns: how many heads stand in a row.
        darkest: the weight drawn darkest in every panel; the heaviest of all by default.
    """
    table = as_heads(weights, layer=layer, batch=batch)
    count, rows, cells = table.shape
    check_tokens("queries", queries, rows)
    check_tokens("keys", keys, cells)
    titles = _titles(names, count)
    check_darkest(darkest)
    check_int("columns", columns, repair="Pass how many heads stand in a row.")
    width, height = (min(max(SMALLEST, CELL * size), LARGEST) for size in (cells, rows))
    with new_panels(count, columns=columns, same_scales=True) as panels:
        across = min(columns, count)
        down = -(-count // across)
        figure = figure_of(panels[0])
        figure.set_size_inches(across * width + 1.5, down * (height + 0.3) + 0.7)
        most = heaviest(table) if darkest is None else darkest
        for head, panel in enumerate(panels):
            paint(panel, table[head], most)
            set_as_words(panel.set_title(titles[head], fontsize=8))
            panel.tick_params(length=2)
            panel.locator_params(integer=True, nbins=5, min_n_ticks=1)
            # The lowest panel of each column, which the one below it would otherwise have named.
            panel.tick_params(labelbottom=head + across >= count)
        beside, below = (None if tokens is None else as_labels(tokens) for tokens in (queries, keys))
        style = type_of(beside, below, size=7)
        if below is not None:
            for panel in panels[max(0, count - across) :]:
                name_columns(panel, below, width / cells, style)
        if beside is not None:
            name_rows(panels[0], beside, height / rows, style)
        columns_named = [] if below is None else list(panels[-1].get_xticks())
        rows_named = [] if beside is None else list(panels[0].get_yticks())
        figure.supxlabel(with_step("key", columns_named), fontsize=9)
        figure.supylabel(with_step("query", rows_named), fontsize=9)
        scale = figure.colorbar(panels[0].images[0], ax=panels, label="weight", fraction=0.05, pad=0.02, aspect=30)
        scale.outline.set_visible(False)
    return panels


def _titles(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        return [f"head {head}" for head in range(count)]
    try:
        titles = as_labels(names)
        got = f"{len(titles)} for {count} heads"
    except TypeError:
        titles, got = [], repr(names)  # nothing that holds names
    if len(titles) != count:
        raise RegardError("names", got=got, needed="one for each head", repair="Leave them out.")
    return titles
