"""Station 1: one query, a hundred keys, and what they pool to (eq. 1 and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

import regard
from regard import plots
from regard.plots.look import COLOURS, POINTS
from regard.regression.experiment import data
from regard.scores import Gaussian
from regard.tour.station import Station, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, FIRST = 0.1, 1.5
BEATS = ("query=1.5", "query=0.4", "query=3.2")


def present() -> Station:
    """The shown draw, its curve, and the weights of the first query."""
    x, y = data.samples()
    places = data.places()
    score = Gaussian(WIDTH)
    curve = regard.attend(places[:, None], x[:, None], y[:, None], score)[:, 0]
    asked = regard.inspect(torch.tensor([[FIRST]], dtype=x.dtype), x[:, None], y[:, None], score)
    weights, output = asked.weights()[0], float(asked.output)
    return Station(
        "query",
        "A query asks, the keys answer",
        facts={"width": f"{WIDTH:g}", "samples": str(len(x))},
        data={"x": x.tolist(), "y": y.tolist(), "width": WIDTH},
        tables=(
            Table(
                "samples",
                ("x", "y", f"weight for x = {FIRST:g}"),
                list(zip(*(t.tolist() for t in (x, y, weights)), strict=True)),
            ),
            Table(
                "curve",
                ("x", "truth", "output"),
                list(zip(*(t.tolist() for t in (places, data.truth(places), curve)), strict=True)),
            ),
        ),
        figures={"query": _draw(x.numpy(), y.numpy(), places.numpy(), curve.numpy(), weights.numpy(), output)},
        beats=BEATS,
    )


def _draw(
    x: np.ndarray, y: np.ndarray, places: np.ndarray, curve: np.ndarray, weights: np.ndarray, output: float
) -> Figure:
    figure, (ax,) = plots.canvas(7.2, 3.4)
    with plots.house_style():
        ax.plot(places, curve, color=POINTS, linewidth=1, label="the output of every query")
        ax.scatter(x, y, s=6 + 900 * weights, color=COLOURS[0], alpha=0.55, linewidths=0, label="keys, sized by weight")
        ax.axvline(FIRST, color=COLOURS[1], linewidth=1, label=f"query x = {FIRST:g}")
        ax.scatter([FIRST], [output], s=60, color=COLOURS[1], zorder=3, label=f"output {output:.2f}")
        ax.set(xlabel="x", ylabel="y", title=f"Gaussian attention pooling, width {WIDTH:g}")
        ax.legend(loc="lower right")
    return figure
