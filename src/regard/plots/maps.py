"""Heights over a plane as a map, with the points they were fitted to in the same colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from regard.errors import RegardError
from regard.plots.look import VALUES, axes_or_new
from regard.plots.numbers import Numbers, as_array
from regard.plots.tokens import set_as_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = 12
# Closer to the end of float64, what matplotlib adds to levels and colours overflows.
LARGEST = 1e300


def height_map(
    x: Numbers,
    y: Numbers,
    heights: Numbers,
    *,
    points: tuple[Numbers, Numbers, Numbers] | None = None,
    label: str = "height",
    ax: Axes | None = None,
) -> Axes:
    """Draw heights as filled contours, points as dots in the colour of their own height; return the axes.

    Args:
        x: (columns,), in order.
        y: (rows,), in order.
        heights: (rows, columns); not a number where there is none, which stays white.
        points: the samples: their x, their y, their height, each (samples,).
        label: what the heights are.
        ax: where to draw; without it, a new figure.
    """
    across, up = as_array("x", x, axes=("columns",)), as_array("y", y, axes=("rows",))
    table = as_array("heights", heights, axes=("rows", "columns"))
    if table.shape != (len(up), len(across)) or min(table.shape) < 2:
        raise RegardError(
            "heights",
            got=f"shape {table.shape}",
            needed=f"({len(up)}, {len(across)}): a row for each y, a column for each x, two or more of both",
            repair="Transpose them, or evaluate them on the grid of x and y.",
        )
    samples = None if points is None else _finite(points)
    shown = np.concatenate([table[np.isfinite(table)], *([] if samples is None else [samples[2]])])
    lowest, highest = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
    _check_size(lowest, highest)
    highest = highest if highest > lowest else lowest + 1.0
    with axes_or_new(ax) as drawn:
        from matplotlib.ticker import MaxNLocator

        levels = MaxNLocator(LEVELS).tick_values(lowest, highest)
        image = drawn.contourf(across, up, np.ma.masked_invalid(table), levels=levels, cmap=VALUES)
        if samples is not None:
            drawn.scatter(
                samples[0], samples[1], c=samples[2], s=16, cmap=VALUES, vmin=levels[0], vmax=levels[-1],
                edgecolors="white", linewidths=0.5,
            )  # fmt: skip
        scale = drawn.figure.colorbar(image, ax=drawn, label=label, fraction=0.05, pad=0.02)
        set_as_words(scale.ax.yaxis.label)
        scale.outline.set_visible(False)
    return drawn


def _check_size(lowest: float, highest: float) -> None:
    if max(-lowest, highest) > LARGEST:
        raise RegardError(
            "heights",
            got=f"numbers from {lowest:g} to {highest:g}",
            needed=f"none beyond {LARGEST:g}, those of the points included",
            repair="Divide them by a large number.",
        )


def _finite(points: tuple[Numbers, Numbers, Numbers]) -> np.ndarray:
    """(3, samples): x, y and height of those that have all three."""
    parts = [as_array("points", part, axes=("samples",)) for part in points]
    if len(parts) != 3 or len({len(part) for part in parts}) != 1:
        raise RegardError(
            "points",
            got=f"{len(parts)} arrays of {', '.join(str(len(part)) for part in parts)} samples",
            needed="three of one length: x, y and height of the samples",
            repair="Pass for example points=(x, y, heights).",
        )
    table = np.stack(parts)
    return table[:, np.isfinite(table).all(0)]
