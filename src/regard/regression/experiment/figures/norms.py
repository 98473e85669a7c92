"""What dropping the norms of the keys costs (eq. 6 to 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS, TRUTH
from regard.regression.experiment.norms import DIM, Dropped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_norms(dropped: Dropped) -> Figure:
    """Left: against the spread of the norms. Right: against the dimension, with the scale of eq. 8."""
    figure, (left, right) = plots.canvas(7.2, 3.3, panels=2)
    with plots.house_style():
        for (name, found), colour in zip(dropped.by_spread.items(), COLOURS, strict=False):
            left.plot(dropped.spreads, found, color=colour, label=name)
        left.plot(dropped.spreads, dropped.bound, color=TRUTH, linestyle=":", linewidth=1.0, label="bound for eq. 7")
        left.set(title=f"keys in {DIM} dimensions, mean |k|² = 1", xlabel="standard deviation of |k|²")
        left.set(ylabel="share of weight on other keys", xlim=(0, None), ylim=(-0.02, 0.7))
        left.legend(loc="upper left")
        for (name, found), colour in zip(dropped.by_dimension.items(), COLOURS[3:], strict=False):
            right.plot(dropped.dimensions, found, color=colour, marker="o", markersize=3, label=name)
        right.set(title="q'k/√D for −|q − k|²/(2√D)", xlabel="dimension D", xscale="log", ylim=(-0.02, 0.7))
        right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        right.minorticks_off()
        right.legend(loc="upper left")
    return figure
