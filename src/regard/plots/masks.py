"""A mask as a picture: who may attend to whom, a row per query, a column per key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from numbers import Integral
from typing import TYPE_CHECKING

from regard.errors import RegardError
from regard.masks import Mask
from regard.plots.cells import cells_on, fit_figure
from regard.plots.look import axes_or_new, weight_colours
from regard.plots.tokens import as_labels, name_columns, name_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The strongest colour stays for weights: a mask is two shades of them.
STRONGEST = 1.4
# Beyond so many cells along an axis hair lines would be all there is to see.
MOST_RULED = 64
# Inches that the legend takes.
LEGEND = 0.25


def mask(
    mask: Mask,
    queries: int | Sequence[object],
    keys: int | Sequence[object],
    *,
    batch: Sequence[int] = (),
    at: Sequence[int] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw one matrix of a mask, ink where a query may attend; return the axes.

    Args:
        mask: in the words of `regard.Mask`.
        queries: how many rows, or the tokens that ask.
        keys: how many columns, or the tokens that answer.
        batch: the batch axes of the call the mask is for, where it has any.
        at: which matrix of that batch; the first by default.
        ax: where to draw; without it, a new figure.
    """
    rows, columns = _count("queries", queries), _count("keys", keys)
    batch, at = _numbers("batch", batch), _numbers("at", at)
    table = Mask.expect(mask).to_sdpa(batch, rows, columns)
    at = at or (0,) * len(batch)
    if len(at) != len(batch) or any(not 0 <= i < size for i, size in zip(at, batch, strict=False)):
        raise RegardError(
            "at",
            got=f"{at}",
            needed=f"one number for each batch axis of {batch}",
            repair="Leave it out for the first matrix.",
        )
    down, across = (as_labels(size) if isinstance(size, Sized) else None for size in (queries, keys))
    with axes_or_new(ax) as drawn:
        if ax is None:
            cells = fit_figure(drawn, (rows, columns), down, across, bar=False, above=LEGEND)
        else:
            cells = cells_on(drawn, (rows, columns), down, across)
            side = min(cells.column, cells.row)  # they will be squares
            cells = cells._replace(column=side, row=side)
        shown = table[at].cpu().numpy()
        drawn.imshow(shown, cmap=weight_colours(drawn), vmin=0, vmax=STRONGEST, aspect="auto", interpolation="none")
        drawn.locator_params(integer=True, min_n_ticks=1)
        _rule(drawn, rows, columns)
        drawn.set_xlabel("key")
        drawn.set_ylabel("query")
        if across is not None:
            name_columns(drawn, across, cells.column, cells.style)
        if down is not None:
            name_rows(drawn, down, cells.row, cells.style)
        if ax is None:
            _explain(drawn)
        else:
            drawn.set_aspect("equal")
    return drawn


def _numbers(argument: str, given: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(given) if isinstance(given, Iterable) else (given,)
    if any(isinstance(number, bool) or not isinstance(number, Integral) for number in numbers):
        raise RegardError(
            argument, got=repr(given), needed="whole numbers", repair=f"Pass for example {argument}=(2,)."
        )
    return tuple(int(number) for number in numbers)


def _count(argument: str, given: int | Sequence[object]) -> int:
    count = given if isinstance(given, Integral) else len(given) if isinstance(given, Sized) else 0
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise RegardError(
            argument, got=repr(given), needed=f"at least one of the {argument}", repair="Pass a number, or the tokens."
        )
    return int(count)


def _rule(ax: Axes, rows: int, columns: int) -> None:
    """Hair lines between cells, while there are few."""
    if max(rows, columns) > MOST_RULED:
        return
    ax.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
    ax.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
    ax.grid(which="minor", color=ax.get_facecolor(), linewidth=1.0)
    ax.tick_params(which="minor", length=0)


def _explain(ax: Axes) -> None:
    from matplotlib.patches import Patch

    colour = ax.images[0].cmap(1 / STRONGEST)
    edge = {"edgecolor": "0.6", "linewidth": 0.5}
    may = Patch(facecolor=colour, label="may attend", **edge)
    may_not = Patch(facecolor=ax.get_facecolor(), label="may not", **edge)
    ax.legend(handles=[may, may_not], loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
