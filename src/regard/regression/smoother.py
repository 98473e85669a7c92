"""The fitted curve: data, kernel, bandwidth and degree. Works on tensors; validates nothing."""

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.sums import Observations, Pool, PoolTask, pool
from regard.regression.sums.observations import SortedData
from regard.scores.kernels import KERNELS

# Distances that exist at once where keys are not sorted: 2^22 float64 numbers are 32 MiB.
DISTANCES_PER_BLOCK = 2**22


@dataclass(frozen=True)
class Nearest:
    """A bandwidth for each query: the distance to its k-th nearest observation, larger where observations are sparse.

    Distances are of X divided by each column's standard deviation if X has several columns. The k-th observation lies
    on the edge of the window: it counts for the Gaussian, the Laplacian and the boxcar, and has weight 0 otherwise.

    Args:
        k: how many observations, counted by weight; or "loo", "aicc" or "gcv" to choose k by that criterion.

    Raises:
        RegardError: if k is neither a whole number from 1 nor a criterion.
    """

    k: int | str

    def __post_init__(self) -> None:
        """Check k; an integer of NumPy becomes one of Python."""
        if isinstance(self.k, Integral) and not isinstance(self.k, bool) and self.k >= 1:
            object.__setattr__(self, "k", int(self.k))
        elif self.k not in ("loo", "aicc", "gcv"):
            raise RegardError(
                "k",
                got=repr(self.k),
                needed='a whole number from 1, or "loo", "aicc", "gcv"',
                repair="Pass for example Nearest(20).",
            )


Width = float | Tensor | Nearest


class Fit(NamedTuple):
    """The estimate at each query.

    Attributes:
        mean: (queries, outputs), 0 where the window is empty.
        log_mass: (queries,), minus infinity where the window is empty.
        leverage: (queries,), the weight in the estimate of one copy of an observation at the query itself.
        slope: (queries, dim, outputs) of the local line, None at degree 0.
    """

    mean: Tensor
    log_mass: Tensor
    leverage: Tensor
    slope: Tensor | None = None


@dataclass(frozen=True)
class Smoother:
    """Nadaraya-Watson (degree 0, eq. 4) or local linear (degree 1) smoothing.

    Attributes:
        data: the observations.
        kernel: the name of the kernel.
        width: the bandwidth: one number, one per dimension, or `Nearest(k)` with a number k.
        degree: 0 or 1.
        tolerance: as in `PoolTask`.
        unit: (dim,) or None. The keys of `data` are divided by it, and `scale` divides queries by it.
    """

    data: Observations
    kernel: str
    width: Width
    degree: int = 0
    tolerance: float | None = None
    unit: Tensor | None = None

    @property
    def reference(self) -> Tensor:
        """A tensor of the dtype and on the device in which queries are computed."""
        return self.data.key

    @property
    def outputs(self) -> int:
        """The number of columns of the values."""
        return self.data.value.shape[-1]

    def scale(self, query: Tensor) -> Tensor:
        """Return the query in the coordinates of the keys; all other methods take queries in these."""
        return query if self.unit is None else query / self.unit

    def width_for(self, query: Tensor, row: Tensor | None = None, exclude: int = 0) -> float | Tensor:
        """Return the bandwidth: one number, one per dimension, or one per query (queries, 1).

        Args:
            query: (queries, dim).
            row: (queries,), the row of the data that each query is and leaves out; or None.
            exclude: how many rows each query leaves out on each side of it.
        """
        if not isinstance(self.width, Nearest):
            return self.width
        assert isinstance(self.width.k, int)
        width, kernel = kth_distances(query, self.data, self.width.k, row, exclude), KERNELS[self.kernel]
        has_edge_weight = kernel.is_edge_inside or not kernel.is_compact  # the k-th key lies on the edge
        return width if has_edge_weight else just_inside(width)

    def task(self, query: Tensor, width: float | Tensor | None = None) -> PoolTask:
        """Return the kernel sums to compute at the queries, by default with the bandwidth of the smoother."""
        width = self.width_for(query) if width is None else width
        return PoolTask(query, self.data, KERNELS[self.kernel], width, tolerance=self.tolerance)

    def pool(self, query: Tensor) -> Pool:
        """Return the kernel sums of each query."""
        return pool(self.task(query))

    def pool_left_out(self, exclude: int) -> Pool:
        """Return the kernel sums at every row of the data, without itself and `exclude` rows on each side."""
        key = self.data.key
        width = self.width_for(key, self.rows(), exclude)
        return pool(self.task(key, width)._replace(leave_out=exclude))

    def fit(self, query: Tensor, width: float | Tensor | None = None) -> Fit:
        """Return the estimate at each query, by default with the bandwidth of the smoother."""
        task = self.task(query, width)._replace(moments=self.degree == 1)
        pooled = pool(task)
        if self.degree == 0:
            return Fit(pooled.mean, pooled.log_mass, (-pooled.log_mass).exp())
        line = hat_matrix.solve_lines(pooled)
        rows = line.needs_exact.nonzero().flatten()
        if len(rows):
            exact = hat_matrix.local_lines(hat_matrix.take_queries(task, rows))
            # Copies: tensors that gradients flow through must not be overwritten.
            mean, slope, factor = (
                found.index_copy(0, rows, part) for found, part in zip(line[:3], exact[:3], strict=True)
            )
            line = hat_matrix.LocalLine(mean, slope, factor, line.needs_exact)
        leverage = line.leverage_factor * (-pooled.log_mass).exp()
        return Fit(line.mean, pooled.log_mass, leverage, line.slope)

    def rows(self) -> Tensor:
        """Return the positions of all rows of the data."""
        return torch.arange(len(self.data.key), device=self.data.key.device)

    def total_weight(self) -> float:
        """Return the number of observations, repetitions counted."""
        return float(len(self.data.key)) if self.data.weight is None else float(self.data.weight.double().sum())

    def overall_mean(self) -> Tensor:
        """Return the mean of all values, (outputs,)."""
        if self.data.weight is None:
            return self.data.value.mean(0)
        return (self.data.weight.unsqueeze(-1) * self.data.value).sum(0) / self.data.weight.sum()

    def weighted_mean(self, numbers: Tensor) -> Tensor:
        """Return the mean in float64 of one number for each row (rows, ...), repetitions counted."""
        numbers = numbers.double()
        if self.data.weight is None:
            return numbers.mean(0)
        weight = self.data.weight.double()
        return torch.tensordot(weight, numbers, dims=1) / weight.sum()


# --- Distances to the k-th nearest key ---------------------------------------------------------------------------


def kth_distances(query: Tensor, data: Observations, k: int, row: Tensor | None = None, exclude: int = 0) -> Tensor:
    """Return the distance within which the keys weigh k together, or that of the farthest key; (queries, 1).

    Args:
        query: (queries, dim).
        data: the observations.
        k: the number of keys, counted by weight.
        row: (queries,), the row of the data that each query is; or None. What it leaves out does not count.
        exclude: how many rows each query leaves out on each side of it.
    """
    if data.is_sortable and (row is None or exclude == 0):
        found = _kth_on_line(query[:, 0], data.sorted, data.weight, k, row).unsqueeze(-1)
    else:
        height = max(DISTANCES_PER_BLOCK // max(data.key.numel(), 1), 1)
        parts = [query.new_empty(0, 1)]
        for start in range(0, len(query), height):
            distance = (query[start : start + height].unsqueeze(1) - data.key).square().sum(-1).sqrt()
            hidden = None if row is None else row[start : start + height]
            parts.append(_kth_of_all(distance, data.weight, k, hidden, exclude))
        found = torch.cat(parts)
    # Where k keys coincide with the query the distance is 0: take a tiny width instead, which pools only those keys.
    return found.clamp(min=torch.finfo(query.dtype).tiny ** 0.5)


def just_inside(width: Tensor) -> Tensor:
    """Return slightly smaller widths, so that the rounding of a distance puts no key on the edge inside."""
    return width * (1 - 16 * torch.finfo(width.dtype).eps)


def _kth_on_line(query: Tensor, data: SortedData, weight: Tensor | None, k: int, row: Tensor | None) -> Tensor:
    """Return the distances (queries,) where keys are sorted: the nearest keys are a window that slides along them."""
    key = data.key.to(query.dtype)
    if weight is None:
        # A row is its own nearest key.
        count = min(k + (row is not None), len(key))
        return _reach(query, key, torch.full_like(query, count, dtype=torch.long))
    assert data.weight is not None
    until = torch.cat([data.weight.new_zeros(1), data.weight.cumsum(0)])
    needed = torch.full_like(query, k * (1 - 1e-6), dtype=torch.float64)
    if row is not None:
        needed = needed + weight[row].double().clamp(max=1)
    low, high = torch.ones_like(query, dtype=torch.long), torch.full_like(query, len(key), dtype=torch.long)
    for _ in range(len(key).bit_length()):
        count = (low + high) >> 1
        first = _first_of_nearest(query, key, count)
        enough = until[first + count] - until[first] >= needed
        low, high = torch.where(enough | (low == high), low, count + 1), torch.where(enough, count, high)
    return _reach(query, key, high)


def _reach(query: Tensor, key: Tensor, count: Tensor) -> Tensor:
    """Return the distance to the farthest of the `count` nearest keys, (queries,)."""
    first = _first_of_nearest(query, key, count)
    return torch.maximum(query - key[first], key[first + count - 1] - query)


def _first_of_nearest(query: Tensor, key: Tensor, count: Tensor) -> Tensor:
    """Return the first of the `count` nearest keys, (queries,): bisect until moving right does not help."""
    left, keys = torch.searchsorted(key, query), len(key)
    low, high = (left - count).clamp(min=0), torch.minimum(left, keys - count)
    low = torch.minimum(low, high)
    for _ in range(int(count.max()).bit_length() if len(count) else 0):
        middle = (low + high) >> 1
        is_open = low < high
        near_enough = query - key[middle] <= key[(middle + count).clamp(max=keys - 1)] - query
        low, high = (
            torch.where(is_open & ~near_enough, middle + 1, low),
            torch.where(is_open & near_enough, middle, high),
        )
    return low


def _kth_of_all(distance: Tensor, weight: Tensor | None, k: int, row: Tensor | None, exclude: int) -> Tensor:
    """Return the distance to the k-th nearest key, (queries, 1), from all distances (queries, keys); any dimension."""
    hidden = None
    if row is not None:
        rows = torch.arange(distance.shape[-1], device=distance.device)
        hidden = (rows - row.unsqueeze(-1)).abs() <= exclude
    if weight is None:
        seen = distance if hidden is None else distance.masked_fill(hidden, torch.inf)
        reached = seen.topk(min(k, seen.shape[-1]), largest=False, sorted=False).values.amax(-1, keepdim=True)
        return torch.where(reached.isinf(), distance.amax(-1, keepdim=True), reached)
    order = distance.argsort(-1)
    counted = weight.expand_as(distance)
    if hidden is not None:
        counted = counted - hidden * (weight.clamp(max=1) if exclude == 0 else weight)
    reached = counted.gather(-1, order).cumsum(-1) >= k * (1 - 1e-6)
    last = torch.where(reached.any(-1), reached.byte().argmax(-1), distance.shape[-1] - 1)
    return distance.gather(-1, order.gather(-1, last.unsqueeze(-1)))
