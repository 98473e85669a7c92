"""Kernels as functions of the distance, as the scores that attention uses say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from regard.attention import inspect
from regard.errors import RegardError
from regard.plots.look import axes_or_new, line_style
from regard.plots.tokens import set_as_words
from regard.scores.names import ScoreLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES = 601


def kernels(scores: Mapping[str, ScoreLike], *, farthest: float = 3.0, ax: Axes | None = None) -> Axes:
    """Draw f(d) = exp(score) against the distance d of a key from a query at 0; return the axes.

    Args:
        scores: name to score of the distance: a name such as "gaussian", a module such as `Gaussian(0.5)`, or a
            callable.
        farthest: the largest distance drawn.
        ax: where to draw; without it, a new figure.
    """
    if not 0 < farthest < float("inf"):
        raise RegardError("farthest", got=f"{farthest}", needed="a distance above 0", repair="Leave it out for 3.")
    distance = torch.linspace(-farthest, farthest, PLACES, dtype=torch.float64, device="cpu")
    drawings = {name: _heights(score, distance) for name, score in scores.items()}
    with axes_or_new(ax) as drawn:
        for index, (name, heights) in enumerate(drawings.items()):
            drawn.plot(distance, heights, **line_style(index), label=name)
        drawn.set(xlabel="distance d = q − k", ylabel="f(d)", xlim=(-farthest, farthest), ylim=(0, None))
        if drawings:
            set_as_words(*drawn.legend(loc="best").get_texts())
    return drawn


def _heights(score: ScoreLike, distance: torch.Tensor) -> np.ndarray:
    """Return f(distance) (places,), computed on the device of the score's tensors."""
    tensors = score.state_dict().values() if isinstance(score, torch.nn.Module) else ()
    key = distance[:, None].to(next((tensor.device for tensor in tensors), distance.device))
    return inspect(key.new_zeros(1, 1), key, key, score).scores()[0].exp().detach().cpu().numpy()
