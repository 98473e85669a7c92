"""Widths that adapt: the distance from each query to its k-th nearest key."""

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression.sums import Observations

# Distances that exist at once: 2^22 float64 numbers are 32 MiB.
DISTANCES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Nearest:
    """A width for each query: the distance to its k-th nearest key, so that sparse regions are smoothed more.

    k: how many keys, repetitions by weight counted; or "loo", "aicc", "gcv": chosen by that criterion. Distances are
        of X divided by each column's standard deviation where X has more than one column. The k-th key lies on the
        edge of the window: it counts for the Gaussian, the Laplacian and the boxcar, and has weight 0 otherwise.
    """

    k: int | str

    def __post_init__(self) -> None:
        """Refuse what is neither a count nor a criterion; a count of NumPy's becomes Python's."""
        if isinstance(self.k, Integral) and not isinstance(self.k, bool) and self.k >= 1:
            object.__setattr__(self, "k", int(self.k))
        elif self.k not in ("loo", "aicc", "gcv"):
            raise RegardError(
                "k",
                got=repr(self.k),
                needed='a whole number from 1, or "loo", "aicc", "gcv"',
                repair="Pass for example Nearest(20).",
            )


def widths(query: Tensor, data: Observations, k: int, own: Tensor | None = None, exclude: int = 0) -> Tensor:
    """(queries, 1): the distance within which the keys weigh k together, or the farthest key's where they do not.

    own: (queries,), or None; the row of the data that each query is. What it leaves out, with `exclude` rows on each
    side, does not count among its neighbours.
    """
    height = max(DISTANCES_AT_ONCE // max(data.key.numel(), 1), 1)
    parts = []
    for start in range(0, len(query), height):
        distance = (query[start : start + height].unsqueeze(1) - data.key).square().sum(-1).sqrt()
        hidden = None if own is None else own[start : start + height]
        if data.weight is None:
            parts.append(_to_nearest(distance, k, hidden, exclude))
        else:
            parts.append(_to_nearest_by_weight(distance, data.weight, k, hidden, exclude))
    # Where k keys coincide with the query the distance is 0: the narrowest width pools those keys and no other.
    narrowest = torch.finfo(query.dtype).tiny ** 0.5
    return torch.cat(parts).clamp(min=narrowest) if parts else query.new_ones(0, 1)


def inside_of(width: Tensor) -> Tensor:
    """A little less, so that a key on the edge is not inside by the rounding of its distance."""
    return width * (1 - 16 * torch.finfo(width.dtype).eps)


def _to_nearest(distance: Tensor, k: int, own: Tensor | None, exclude: int) -> Tensor:
    """(queries, 1): the k-th smallest distance to a key that is not left out, or the largest to any key if fewer."""
    seen = distance if own is None else distance.masked_fill(_left_out(distance, own, exclude), torch.inf)
    reached = seen.topk(min(k, seen.shape[-1]), largest=False, sorted=False).values.amax(-1, keepdim=True)
    return torch.where(reached.isinf(), distance.amax(-1, keepdim=True), reached)


def _to_nearest_by_weight(distance: Tensor, weight: Tensor, k: int, own: Tensor | None, exclude: int) -> Tensor:
    """The same where keys have weights: from the nearest key on, weights are added up until they reach k."""
    order = distance.argsort(-1)
    counted = weight.expand_as(distance)
    if own is not None:
        counted = counted - _left_out(distance, own, exclude) * (weight.clamp(max=1) if exclude == 0 else weight)
    reached = counted.gather(-1, order).cumsum(-1) >= k * (1 - 1e-6)
    place = torch.where(reached.any(-1), reached.byte().argmax(-1), distance.shape[-1] - 1)
    return distance.gather(-1, order.gather(-1, place.unsqueeze(-1)))


def _left_out(distance: Tensor, own: Tensor, exclude: int) -> Tensor:
    """(queries, keys): the row of the data that each query is, and `exclude` rows on each side of it."""
    rows = torch.arange(distance.shape[-1], device=distance.device)
    return (rows - own.unsqueeze(-1)).abs() <= exclude
