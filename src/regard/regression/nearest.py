"""Widths that adapt: the distance from each query to its k-th nearest key."""

from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression.sums import Data

# Kernels that are above 0 on the edge of their window, where the k-th key lies.
EDGE_COUNTS = ("gaussian", "laplacian", "boxcar")
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


def widths(query: Tensor, data: Data, k: int, own: Tensor | None = None, exclude: int = 0) -> Tensor:
    """(queries, 1): the distance within which the keys weigh k together, or the farthest key's where they do not.

    own: (queries,), or None; the row of the data that each query is. What it leaves out, with `exclude` rows on each
    side, does not count among its neighbours.
    """
    weight = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    height = max(DISTANCES_AT_ONCE // max(data.key.numel(), 1), 1)
    parts = []
    for start in range(0, len(query), height):
        block = query[start : start + height]
        distance = (block.unsqueeze(1) - data.key).square().sum(-1).sqrt()
        order = distance.argsort(-1)
        counted = weight.expand_as(distance)
        if own is not None:
            counted = _without_own(counted.clone(), own[start : start + height], exclude)
        reached = counted.gather(-1, order).cumsum(-1) >= k * (1 - 1e-6)
        place = torch.where(reached.any(-1), reached.byte().argmax(-1), distance.shape[-1] - 1)
        parts.append(distance.gather(-1, order.gather(-1, place.unsqueeze(-1))))
    # Where k keys coincide with the query the distance is 0: the narrowest width pools those keys and no other.
    narrowest = torch.finfo(query.dtype).tiny ** 0.5
    return torch.cat(parts).clamp(min=narrowest) if parts else query.new_ones(0, 1)


def inside_of(width: Tensor) -> Tensor:
    """A little less, so that a key on the edge is not inside by the rounding of its distance."""
    return width * (1 - 16 * torch.finfo(width.dtype).eps)


def _without_own(counted: Tensor, own: Tensor, exclude: int) -> Tensor:
    """Take from each row's counts (rows, keys) what the row leaves out."""
    if exclude == 0:
        place = (torch.arange(len(own), device=own.device), own)
        counted[place] -= counted[place].clamp(max=1)
        return counted
    keys = torch.arange(counted.shape[-1], device=own.device)
    return counted.masked_fill((keys - own.unsqueeze(-1)).abs() <= exclude, 0.0)
