"""Additive tiles: by an identity wherever activations are within its reach, by tanh itself elsewhere.

With u = e^(-2a) and v = e^(2b), tanh(a + b) = 1 - 2r for r = u / (u + v), and its derivative is 4 (r - r^2): an
exponential for each token, and for a pair no more than a division. u, v, their sum and r are rounded once each, so a
tanh and its derivative err by a few eps.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regard.backends.blocked.tiles import Tiles, add_shared
from regard.checks import accumulation_dtype, common_batch

# Bound on the error of a tanh and of its derivative, in units of the dtype's eps; of a score, times sum |w|, which
# leaves room for the roundings of a sum.
TANH_ERROR = 16.0


def promised(dtype: torch.dtype) -> float:
    """The bound on the error of a tanh, for inputs of that dtype."""
    return TANH_ERROR * torch.finfo(accumulation_dtype(dtype)).eps


def keeps(tolerance: float | None, dtype: torch.dtype) -> bool:
    """Whether an identity is as exact as asked for."""
    return tolerance is None or tolerance >= promised(dtype)


class AdditiveTiles(Tiles):
    """w' tanh(a + b) (eq. 12); operands a (query), b (key), w.

    u, v: (*batch, tokens, hidden) each. batch: that of the scores.
    """

    # A tile has a high cost at any size: fewer tiles are worth more than a smaller share of the cache.
    larger = 2
    # Up to here u, v, their sum, and a good part of u are normal numbers.
    reaches: ClassVar[dict[torch.dtype, float]] = {torch.float32: 40.0, torch.float64: 340.0}

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], tanh: bool = False) -> None:
        """tanh: take tanh in every tile."""
        super().__init__(operands, needs)
        self.query, self.key, self.weight = operands
        self.reach = -1.0 if tanh else self.reaches[self.query.dtype]
        self.query_reach, self.key_reach = _reach(self.query), _reach(self.key)
        self.batch = common_batch(*operands)
        self.u, self.v = (-2 * self.query).exp_(), (2 * self.key).exp_()

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """The sum over hidden units."""
        within = self._within_reach(rows, cols)
        return self.identity_scores(rows, cols) if within else self._tanh_scores(rows, cols)

    def backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Through the same way as the scores."""
        within = self._within_reach(rows, cols)
        (self.identity_backward if within else self._tanh_backward)(rows, cols, grad)

    @abstractmethod
    def identity_scores(self, rows: slice, cols: slice) -> Tensor:
        """As `scores`, where every activation is within reach."""

    @abstractmethod
    def identity_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """As `backward`, where every activation is within reach."""

    def _within_reach(self, rows: slice, cols: slice) -> bool:
        """Not within reach where an activation is too large or NaN."""
        return max(self.query_reach[rows]) <= self.reach and max(self.key_reach[cols]) <= self.reach

    def _tanh_scores(self, rows: slice, cols: slice) -> Tensor:
        total: Tensor | float = 0.0
        for unit in range(self.query.shape[-1]):
            total = total + self._tanh(rows, cols, unit) * self.weight[..., unit : unit + 1]
        assert isinstance(total, Tensor)
        return total

    def _tanh_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        for unit in range(self.query.shape[-1]):
            tanh = self._tanh(rows, cols, unit)
            to_query, to_key, to_weight = (None if g is None else g[..., unit] for g in self.grads)
            if to_weight is not None:
                add_shared(to_weight, (grad * tanh).sum((-2, -1)).unsqueeze(-1))
            pull = tanh.square_().neg_().add_(1).mul(grad * self.weight[..., unit : unit + 1])
            if to_query is not None:
                add_shared(to_query[..., rows], pull.sum(-1))
            if to_key is not None:
                add_shared(to_key[..., cols], pull.sum(-2))

    def _tanh(self, rows: slice, cols: slice, unit: int) -> Tensor:
        one = slice(unit, unit + 1)
        return (self.query[..., rows, one] + self.key[..., cols, one].mT).tanh_()


def _reach(tokens: Tensor) -> list[float]:
    """The largest |activation| of each token over batch and hidden units; infinite where one is NaN."""
    largest = tokens.abs().amax(-1)
    return largest.flatten(0, -2).amax(0).nan_to_num(nan=torch.inf).tolist() if largest.ndim > 1 else largest.tolist()
