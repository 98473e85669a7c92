"""The kernels of eq. 5 and the further ones, as functions of the distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import regard
from regard import plots
from regard.plots.look import COLOURS
from regard.regression.experiment.names import title
from regard.regression.experiment.shown import OF_THE_CHAPTER
from regard.scores.names import KERNEL_SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FARTHEST = 3.0
POINTS = 601


def draw_kernels() -> Figure:
    """Left the chapter's, with the two that share the name Epanechnikov; right the others. Width 1."""
    figure, panels = plots.canvas(7.2, 2.7, panels=2, same_scales=True)
    others = tuple(kernel for kernel in KERNEL_SCORES if kernel not in OF_THE_CHAPTER)
    distance = torch.linspace(-FARTHEST, FARTHEST, POINTS, dtype=torch.float64, device="cpu")
    with plots.house_style():
        for ax, names, heading in zip(
            panels, (OF_THE_CHAPTER, others), ("Kernels of eq. 5", "Further kernels"), strict=True
        ):
            for name, colour in zip(names, COLOURS, strict=False):
                ax.plot(distance, heights(name, distance), color=colour, label=_label(name))
            ax.set(title=heading, xlabel="distance d = q − k, width 1", xlim=(-FARTHEST, FARTHEST), ylim=(0, 1.45))
            ax.legend(loc="upper center", ncols=2, columnspacing=1.2)
            ax.set_yticks([0, 0.5, 1])
        panels[0].set_ylabel("f(d)")
    return figure


def heights(kernel: str, distance: torch.Tensor) -> torch.Tensor:
    """f(d), as the score that attention uses says it: exp of the log-kernel."""
    query, key = distance.new_zeros(1, 1), distance[:, None]
    return regard.inspect(query, key, key, score=KERNEL_SCORES[kernel](1.0)).scores()[0].exp()


def _label(name: str) -> str:
    return f"{title(name)} (called\nEpanechnikov in eq. 5)" if name == "triangular" else title(name)
