"""A mask as a picture: who may attend to whom, a row per query, a column per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.errors import RegardError
from regard.masks import Mask
from regard.plots.look import WEIGHTS, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def mask(
    mask: Mask,
    queries: int,
    keys: int,
    *,
    batch: Sequence[int] = (),
    at: Sequence[int] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw one matrix of a mask, ink where a query may attend; return the axes.

    Args:
        mask: in the words of `regard.Mask`.
        queries: how many rows.
        keys: how many columns.
        batch: the batch axes of the call the mask is for, where it has any.
        at: which matrix of that batch; the first by default.
        ax: where to draw; without it, a new figure.
    """
    table = Mask.expect(mask).to_sdpa(tuple(batch), queries, keys)
    at = tuple(at) or (0,) * len(batch)
    if len(at) != len(batch) or any(not 0 <= i < size for i, size in zip(at, batch, strict=False)):
        raise RegardError(
            "at",
            got=f"{at}",
            needed=f"one number for each batch axis of {tuple(batch)}",
            repair="Leave it out for the first matrix.",
        )
    with axes_or_new(ax) as drawn:
        shown = table[at].cpu().numpy()
        drawn.imshow(shown, cmap=WEIGHTS, vmin=0, vmax=1.4, aspect="equal", interpolation="none")
        drawn.set_xticks([j - 0.5 for j in range(1, keys)], minor=True)
        drawn.set_yticks([i - 0.5 for i in range(1, queries)], minor=True)
        drawn.grid(which="minor", color="white", linewidth=1.0)
        drawn.tick_params(which="minor", length=0)
        drawn.set_xlabel("key")
        drawn.set_ylabel("query")
    return drawn
