"""Kernel sums before they are divided, and the Pool they make (eq. 4)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.regression.sums.line import Asked, Line
from regard.regression.sums.record import Moments, Pool


@dataclass
class Totals:
    """sum_j w_j f(q, k_j) times 1 and y_j; where moments are wanted also times u, u y_j and u^2, u = (k_j - q) / width.

    sums: (channels, queries), or (2 channels + 1, queries) with moments, in this order. log_scale: (queries,), the
    logarithm of what the sums are to be multiplied with, or None where that is 0.
    """

    sums: Tensor
    log_scale: Tensor | None

    @classmethod
    def zero(cls, asked: Asked, line: Line, moments: bool) -> "Totals":
        """No key yet."""
        count = line.channels * 2 + 1 if moments else line.channels
        return cls(asked.place.new_zeros(count, asked.place.shape[0]), None)

    def overwrite(self, rows: Tensor, sums: Tensor, log_scale: Tensor) -> None:
        """Put other sums (count, rows) of another scale (rows,) into these rows."""
        if self.log_scale is None:
            self.log_scale = torch.zeros_like(self.sums[0])
        self.sums[:, rows] = sums
        self.log_scale[rows] = log_scale

    def keep_own(self, asked: Asked, line: Line) -> None:
        """Add what stays of a row that leaves out itself: f(0) = 1, so its mass is the weight that stays."""
        if asked.kept is not None:
            self.sums[0] += asked.kept
            self.sums[1 : line.channels] += asked.kept * line.value

    def pool(self, asked: Asked, line: Line, width: float) -> Pool:
        """Divide, and put the queries into their first order. The sums are overwritten."""
        dtype, channels = line.data.key.dtype, line.channels
        mass = self.sums[0]
        empty = ~(mass > 0)
        # Far beyond the last key even the logarithm of a Gaussian overflows: it is no empty row for that.
        log_mass = mass.log() if self.log_scale is None else mass.log().add_(self.log_scale)
        log_mass.clamp_(min=torch.finfo(torch.float64).min).masked_fill_(empty, -math.inf)
        ratio = self.sums[1:].div_(mass).masked_fill_(empty, 0.0)
        found = None
        if len(ratio) >= channels:
            shift = ratio[channels - 1]
            cross = ratio[channels : 2 * channels - 1] + line.centre.unsqueeze(-1) * shift
            spread = ratio[-1]
            found = Moments(
                _first_order(shift * width, asked, dtype).unsqueeze(-1),
                _first_order(spread * width**2, asked, dtype)[:, None, None],
                _first_order(cross * width, asked, dtype).T.unsqueeze(1),
            )
        mean = ratio[: channels - 1].add_(line.centre.unsqueeze(-1)).masked_fill_(empty, 0.0)
        return Pool(_first_order(mean, asked, dtype).T, _first_order(log_mass, asked, dtype), found)


def tolerance_of(tolerance: float | None, dtype: torch.dtype) -> float:
    """What may be lost of a result: the rounding of float32, and in float64 what sums of millions keep."""
    if tolerance is not None:
        return tolerance
    return 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps / 2


def _first_order(numbers: Tensor, asked: Asked, dtype: torch.dtype) -> Tensor:
    numbers = numbers.to(dtype)
    if asked.order is None:
        return numbers
    return torch.empty_like(numbers).scatter_(-1, asked.order.long().expand_as(numbers), numbers)
