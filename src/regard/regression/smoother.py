"""The fitted curve: data, kernel, bandwidth and degree. Works on tensors; validates nothing."""

from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.sums import Kernel, Observations, Pool, Prepared, pool, prepare
from regard.scores.kernels import KERNELS

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


def kth_distances(query: Tensor, data: Observations, k: int, own: Tensor | None = None, exclude: int = 0) -> Tensor:
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


def just_inside(width: Tensor) -> Tensor:
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


Width = float | Tensor | Nearest


class Fit(NamedTuple):
    """The estimate at each query.

    mean: (queries, outputs), 0 where the window is empty. log_mass: (queries,), minus infinity there.
    leverage: (queries,), the weight that one repetition of a key at the query itself has (or would have) in the sum.
    slope: (queries, dim, outputs) of the local line, None at degree 0.
    """

    mean: Tensor
    log_mass: Tensor
    leverage: Tensor
    slope: Tensor | None = None


@dataclass(frozen=True)
class Smoother:
    """Nadaraya-Watson (degree 0, eq. 4) or local linear (degree 1) smoothing of `data`.

    width: one number, one per dimension, or `Nearest(k)` with a number k.
    scale: (dim,) or None; queries are divided by it. The keys of `data` already are.
    prepared: what the kernel sums make of `data` once for all widths; `replace(smoother, width=...)` keeps it.
    """

    data: Observations
    kernel: str
    width: Width
    degree: int = 0
    tolerance: float | None = None
    scale: Tensor | None = None
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare the data, unless that was done for the very same data."""
        if self.prepared is None or getattr(self.prepared, "data", self.prepared) is not self.data:
            object.__setattr__(self, "prepared", prepare(self.data))

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device where queries are answered."""
        return self.data.key

    @property
    def outputs(self) -> int:
        """Columns of the values."""
        return self.data.value.shape[-1]

    def place(self, query: Tensor) -> Tensor:
        """The query in the coordinates of the keys."""
        return query if self.scale is None else query / self.scale

    def kernel_at(self, query: Tensor, own: Tensor | None = None, exclude: int = 0) -> Kernel:
        """The kernel with its width, one per query where it adapts; query is in the coordinates of the keys.

        own: (queries,), or None; the row of the data that each query is and leaves out.
        """
        if isinstance(self.width, Nearest):
            assert isinstance(self.width.k, int)
            width = kth_distances(query, self.data, self.width.k, own, exclude)
            kernel = KERNELS[self.kernel]
            has_edge_weight = kernel.is_edge_inside or not kernel.is_compact  # the k-th key lies on the edge
            return Kernel(self.kernel, width if has_edge_weight else just_inside(width))
        return Kernel(self.kernel, self.width)

    def pool(self, query: Tensor, *, moments: bool = False) -> Pool:
        """The kernel sums of each query, in the coordinates of the keys."""
        return pool(query, self.ready, self.kernel_at(query), moments=moments, tolerance=self.tolerance)

    def pool_left_out(self, exclude: int) -> Pool:
        """The kernel sums at every row of the data, which leaves out itself and `exclude` rows on each side."""
        key = self.data.key
        kernel = self.kernel_at(key, torch.arange(len(key), device=key.device), exclude)
        return pool(key, self.ready, kernel, exclude=exclude, tolerance=self.tolerance)

    def fit(self, query: Tensor) -> Fit:
        """The estimate at each query, in the coordinates of the keys."""
        pooled = self.pool(query, moments=self.degree == 1)
        if self.degree == 0:
            return Fit(pooled.mean, pooled.log_mass, (-pooled.log_mass).exp())
        line = hat_matrix.solve_lines(pooled)
        lost = line.lost.nonzero().flatten()
        if len(lost):
            exact = hat_matrix.local_lines(self, query[lost])
            # Copies: what a gradient flows through must not be written over.
            mean, slope, inflation = (
                found.index_copy(0, lost, part) for found, part in zip(line[:3], exact[:3], strict=True)
            )
            line = hat_matrix.LocalLine(mean, slope, inflation, line.lost)
        leverage = line.inflation * (-pooled.log_mass).exp()
        return Fit(line.mean, pooled.log_mass, leverage, line.slope)

    @property
    def ready(self) -> Prepared:
        """The data as the kernel sums take them."""
        assert self.prepared is not None  # __post_init__ has prepared the data
        return self.prepared

    @property
    def adapts(self) -> bool:
        """Whether the width is another at every query."""
        return isinstance(self.width, Nearest)

    def total(self) -> float:
        """How many observations there are, repetitions counted."""
        return float(len(self.data.key)) if self.data.weight is None else float(self.data.weight.double().sum())

    def overall_mean(self) -> Tensor:
        """(outputs,): the mean of all values."""
        if self.data.weight is None:
            return self.data.value.mean(0)
        return (self.data.weight.unsqueeze(-1) * self.data.value).sum(0) / self.data.weight.sum()

    def average(self, rows: Tensor) -> Tensor:
        """The mean over the data of one number for each key, repetitions counted; in float64."""
        rows = rows.double()
        if self.data.weight is None:
            return rows.mean(0)
        weight = self.data.weight.double()
        return torch.tensordot(weight, rows, dims=1) / weight.sum()
