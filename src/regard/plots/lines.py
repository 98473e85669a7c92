"""Curves over the points they were fitted to, with their bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from regard.errors import RegardError
from regard.plots.look import COLOURS, POINTS, axes_or_new, ink, line_style
from regard.plots.numbers import Numbers, as_array
from regard.plots.tokens import set_as_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class BandLike(Protocol):
    """What `NadarayaWatson.confidence_band` returns, or any record with these three, each (count,)."""

    @property
    def mean(self) -> Numbers:
        """The curve."""

    @property
    def lower(self) -> Numbers:
        """Below it."""

    @property
    def upper(self) -> Numbers:
        """Above it."""


def curves(
    x: Numbers,
    fits: Mapping[str, Numbers],
    *,
    truth: Numbers | None = None,
    points: tuple[Numbers, Numbers] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw fitted curves by name, over the points and the true curve where they are known; return the axes.

    Args:
        x: (count,), where every curve was evaluated, in order.
        fits: name to heights, each (count,).
        truth: (count,), the noiseless curve, dashed.
        points: the samples, their x and their y, each (samples,).
        ax: where to draw; without it, a new figure.
    """
    at = as_array("x", x, axes=("count",))
    heights = {name: _along(f"fits[{name!r}]", fit, at) for name, fit in fits.items()}
    true_heights = None if truth is None else _along("truth", truth, at)
    samples = None if points is None else _points(*points)
    with axes_or_new(ax) as drawn:
        if samples is not None:
            drawn.scatter(*samples, s=9, color=POINTS, linewidths=0, label="samples")
        if true_heights is not None:
            drawn.plot(at, true_heights, color=ink(drawn), linestyle=(0, (4, 2)), linewidth=1.2, label="truth")
        for index, (name, height) in enumerate(heights.items()):
            drawn.plot(at, height, **line_style(index), label=name)
    return drawn


def band(
    x: Numbers, lower: Numbers, upper: Numbers, *, label: str = "band", colour: str = COLOURS[0], ax: Axes | None = None
) -> Axes:
    """Shade what lies between two curves; return the axes.

    Args:
        x: (count,), where both were evaluated, in order.
        lower: (count,); not a number where there is no band.
        upper: (count,).
        label: what the band is, for the legend.
        colour: that of the curve it belongs to.
        ax: where to draw; without it, a new figure.
    """
    at = as_array("x", x, axes=("count",))
    below, above = _along("lower", lower, at), _along("upper", upper, at)
    with axes_or_new(ax) as drawn:
        drawn.fill_between(at, below, above, color=colour, alpha=0.22, linewidth=0, label=label)
    return drawn


def fit(
    x: Numbers,
    found: BandLike,
    *,
    points: tuple[Numbers, Numbers] | None = None,
    truth: Numbers | None = None,
    name: str = "fit",
    label: str = "band of the estimator's mean",
    ax: Axes | None = None,
) -> Axes:
    """Draw a fitted curve with its band, the points and the true curve where they are known; return the axes.

    Args:
        x: (count,), where the curve was evaluated, in order.
        found: a record with mean, lower and upper, such as `model.confidence_band(x)`.
        points: the samples, their x and their y.
        truth: (count,), the noiseless curve, dashed.
        name: what the curve is, for the legend.
        label: what the band is. A band of `confidence_band` covers the mean of the estimator, not the true curve.
        ax: where to draw; without it, a new figure.
    """
    with axes_or_new(ax) as drawn:
        band(x, found.lower, found.upper, label=label, ax=drawn)
        curves(x, {name: found.mean}, truth=truth, points=points, ax=drawn)
        drawn.set(xlabel="x", ylabel="y")
        set_as_words(*drawn.legend(loc="best").get_texts())
    return drawn


def _points(x: Numbers, y: Numbers) -> tuple[np.ndarray, np.ndarray]:
    across = as_array("points[0]", x, axes=("samples",))
    return across, _along("points[1]", y, across)


def _along(argument: str, numbers: Numbers, x: np.ndarray) -> np.ndarray:
    heights = as_array(argument, numbers, axes=("count",))
    if len(heights) != len(x):
        raise RegardError(
            argument,
            got=f"{len(heights)} heights for {len(x)} places",
            needed="one height for each place",
            repair="Evaluate the curve where it is drawn.",
        )
    return heights
