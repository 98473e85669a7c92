"""The fitted curve itself, on tensors: data, kernel, width and degree, without any manners of an estimator."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression import hat, local_linear, nearest
from regard.regression.sums import Kernel, Observations, Pool, Prepared, pool, prepare
from regard.scores.kernels import KERNELS

Width = float | Tensor | nearest.Nearest


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
        if isinstance(self.width, nearest.Nearest):
            assert isinstance(self.width.k, int)
            width = nearest.widths(query, self.data, self.width.k, own, exclude)
            kernel = KERNELS[self.kernel]
            has_edge_weight = kernel.is_edge_inside or not kernel.is_compact  # the k-th key lies on the edge
            return Kernel(self.kernel, width if has_edge_weight else nearest.inside_of(width))
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
        line = local_linear.solve(pooled)
        lost = line.lost.nonzero().flatten()
        if len(lost):
            exact = hat.lines(self, query[lost])
            # Copies: what a gradient flows through must not be written over.
            mean, slope, inflation = (
                found.index_copy(0, lost, part) for found, part in zip(line[:3], exact[:3], strict=True)
            )
            line = local_linear.Line(mean, slope, inflation, line.lost)
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
        return isinstance(self.width, nearest.Nearest)

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
