"""Entropy of the weights and gradient of the scores against the dimension, scaled and not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS
from regard.translation.lab.saturation import SCORES, VANISHED, Saturation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_saturation(found: Saturation) -> Figure:
    """Left: mean entropy. Middle: median gradient, the band from its 10% to its 90% quantile. Right: vanished ones."""
    figure, panels = plots.canvas(7.2, 2.7, panels=3)
    entropy, gradient, vanished = panels
    with plots.house_style():
        for score, colour, marker in zip(SCORES, COLOURS[1::-1], "os", strict=True):
            rows = found.of(score)
            dims = [row.dim for row in rows]
            style = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.3, "label": score}
            entropy.plot(dims, [row.entropy for row in rows], **style)
            gradient.plot(dims, [row.gradient for row in rows], **style)
            gradient.fill_between(
                dims, [row.low for row in rows], [row.high for row in rows], color=colour, alpha=0.18, linewidth=0
            )
            vanished.plot(dims, [100 * row.vanished for row in rows], clip_on=False, **style)
        for ax in panels:
            ax.set(xscale="log", xlabel="dimension D")
            ax.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
            ax.minorticks_off()
        entropy.set(title="entropy / log keys", ylim=(0, 1))
        gradient.set(title="|∂o/∂s|, median, 80% band", yscale="log", ylim=(1e-6, 2))
        vanished.set(title=f"|∂o/∂s| < {VANISHED:g}, % of queries", ylim=(0, 100))
        vanished.legend(loc="upper left")
    return figure
