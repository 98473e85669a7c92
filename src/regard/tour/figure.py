"""The tour's figure: fits of three widths beside the weights that made one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from regard import plots
from regard.tour.fits import SHOWN_WIDTH, Fits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHOLE = (0, 1, 2, 3, 4)


def draw(fits: Fits) -> Figure:
    """Left: samples, truth and fits. Right: a row of weights per place, a column per sample."""
    figure, (left, right) = plots.canvas(7.2, 3.2, panels=2)
    with plots.house_style():
        _draw_fits(fits, left)
        _draw_weights(fits, right)
    return figure


def _draw_fits(fits: Fits, ax: Axes) -> None:
    named = {f"width {width:g}": fit for width, fit in fits.by_width.items()}
    plots.curves(fits.places, named, truth=fits.truth, points=(fits.x, fits.y), ax=ax)
    ax.set(xlabel="x", ylabel="y", title="Gaussian attention pooling", xticks=WHOLE)
    ax.legend(loc="lower right")


def _draw_weights(fits: Fits, ax: Axes) -> None:
    plots.heatmap(fits.attended.weights(), ax=ax)
    ax.set(xlabel="key: x of the samples, in order", ylabel="query: x", title=f"Weights at width {SHOWN_WIDTH:g}")
    # Samples are not evenly spaced in x, so neither are their ticks.
    ax.set_xticks([_index(fits.x, x) for x in WHOLE], [str(x) for x in WHOLE])
    ax.set_yticks([_index(fits.places, x) for x in WHOLE], [str(x) for x in WHOLE])
    ax.invert_yaxis()


def _index(ordered: Tensor, x: float) -> int:
    return int((ordered - x).abs().argmin())
