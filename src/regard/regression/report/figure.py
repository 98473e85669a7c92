"""The fit of a file as a figure: a curve with its band over one x, a map over two."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from regard import plots
from regard.plots.tokens import set_as_words
from regard.regression.report.fitted import Fitted
from regard.regression.report.places import axes_over
from regard.regression.report.wishes import Wishes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACES = 401
PLACES_OF_MAP = 81
# More points than this make the file heavy and the picture no clearer.
MOST_POINTS = 2000


def draw(wishes: Wishes, fitted: Fitted) -> Figure:
    """A figure of one panel, for one or two columns x."""
    figure, (ax,) = plots.canvas(5.6, 3.9)
    shown = _sample(len(fitted.y))
    with plots.house_style(), warnings.catch_warnings(action="ignore"):  # a gap in the curve speaks for itself
        (_curve if fitted.x.shape[1] == 1 else _map)(wishes, fitted, shown, ax)
        ax.set_title(f"{wishes.kernel.removesuffix('_kernel')} kernel, {_width(wishes, fitted)}")
        if len(shown) < len(fitted.y):
            note = f"{len(shown)} of {len(fitted.y)} samples are drawn"
            ax.annotate(note, (1, 1.02), xycoords="axes fraction", ha="right", fontsize=8)
    return figure


def _curve(wishes: Wishes, fitted: Fitted, shown: np.ndarray, ax: Axes) -> None:
    (places,) = axes_over(fitted.x, PLACES)
    found = fitted.model.confidence_band(places[:, None], wishes.level, wishes.variance)
    plots.curves(places, {"fit": found.mean}, points=(fitted.x[shown, 0], fitted.y[shown]), ax=ax)
    label = f"{100 * wishes.level:g}% band of the estimator's mean,\nnot of the true curve"
    plots.band(places, found.lower, found.upper, label=label, ax=ax)
    ax.set(xlabel=wishes.x[0], ylabel=wishes.y)
    set_as_words(ax.xaxis.label, ax.yaxis.label)
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _map(wishes: Wishes, fitted: Fitted, shown: np.ndarray, ax: Axes) -> None:
    across, up = axes_over(fitted.x, PLACES_OF_MAP)
    table = np.stack(np.meshgrid(across, up), -1)
    heights = fitted.model.predict(table.reshape(-1, 2)).reshape(table.shape[:2])
    points = (*fitted.x[shown].T, fitted.y[shown])
    plots.height_map(across, up, heights, points=points, label=f"{wishes.y}: map fitted, dots observed", ax=ax)
    ax.set(xlabel=wishes.x[0], ylabel=wishes.x[1])
    set_as_words(ax.xaxis.label, ax.yaxis.label)


def _width(wishes: Wishes, fitted: Fitted) -> str:
    width = fitted.model.bandwidth_
    if not isinstance(width, float | np.ndarray):
        return f"nearest {width.k} rows"
    numbers = " and ".join(f"{number:.3g}" for number in np.atleast_1d(width).tolist())
    chosen = f" by {wishes.bandwidth}" if wishes.bandwidth.isalpha() else ""
    return f"bandwidth {numbers}{chosen}"


def _sample(rows: int) -> np.ndarray:
    """Which rows are drawn: all, or as many as a figure can show, the same ones every time."""
    if rows <= MOST_POINTS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, MOST_POINTS, replace=False))
