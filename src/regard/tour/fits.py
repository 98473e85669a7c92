"""Kernel regression as attention: places are queries, sampled x are keys, sampled y are values (eq. 4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

import regard
from regard.regression.experiment import data

WIDTHS = (0.1, 0.35, 1.0)
SHOWN_WIDTH = 0.35


@dataclass(frozen=True)
class Fits:
    """Everything the tour prints and draws, computed once.

    x, y: (samples,), the data. places, truth: (places,), the noiseless curve.
    by_width: Gaussian bandwidth to fit, (places,). attended: the record of the shown width.
    """

    x: Tensor
    y: Tensor
    places: Tensor
    truth: Tensor
    by_width: dict[float, Tensor]
    attended: regard.Attended

    def error(self, width: float) -> float:
        """Mean squared error of a fit against the noiseless curve."""
        return (self.by_width[width] - self.truth).square().mean().item()


def fit(widths: Sequence[float] = WIDTHS, *, shown: float = SHOWN_WIDTH) -> Fits:
    """Pool the chapter's data at every width, and keep the full record of one."""
    x, y = data.samples()
    places = data.places()
    query, key, value = places[:, None], x[:, None], y[:, None]
    by_width = {width: regard.attend(query, key, value, score=regard.scores.Gaussian(width))[:, 0] for width in widths}
    attended = regard.inspect(query, key, value, score=regard.scores.Gaussian(shown))
    return Fits(x, y, places, data.truth(places), by_width, attended)
