"""All draws on one line, too far apart to see each other: one near-linear call of the kernel sums serves them all."""

import torch
from torch import Tensor

from regard.regression.experiment import data
from regard.regression.experiment.draws import Curves, Draws, fill_by_nearest
from regard.regression.sums import Observations, PoolTask, pool
from regard.scores.kernels import KERNELS

# From one draw to the next. What reaches over it weighs less than e^-35 for every width that is tried: a rounding.
APART = 40.0


class OneLine:
    """The samples of all draws as one data set, for kernels of one width."""

    def __init__(self, draws: Draws) -> None:
        """Move each draw to its own stretch of the line."""
        self.draws = draws
        number = torch.arange(len(draws.x), dtype=torch.float64, device="cpu")
        self._start = number[:, None] * (APART + data.HIGH - data.LOW)
        self._key = (draws.x + self._start).reshape(-1, 1)
        self._samples = Observations(self._key, draws.y.reshape(-1, 1))

    def fit(self, kernel: str, width: float) -> Curves:
        """Nadaraya-Watson (eq. 4) of every draw at the 81 places."""
        query = (data.places() + self._start).reshape(-1, 1)
        pooled = pool(PoolTask(query, self._samples, KERNELS[kernel], width))
        shape = (len(self.draws.x), -1)
        return fill_by_nearest(pooled.mean.reshape(shape), pooled.log_mass.reshape(shape).isneginf(), self.draws)

    def left_out(self, kernel: str, width: float) -> Tensor:
        """(draws,): the mean squared error of predicting each sample from the others of its draw.

        A sample that has no other in its window is predicted by the mean of the others, as `NadarayaWatson` does.
        """
        pooled = pool(PoolTask(self._key, self._samples, KERNELS[kernel], width, leave_out=0))
        y = self.draws.y
        mean_of_others = (y.sum(-1, keepdim=True) - y) / (y.shape[-1] - 1)
        predicted = torch.where(
            pooled.log_mass.isneginf().reshape(y.shape), mean_of_others, pooled.mean.reshape(y.shape)
        )
        return (predicted - y).square().mean(-1)
