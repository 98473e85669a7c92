"""What kernel sums take and return: observations, a task, and pools with moments."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.scores.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Observations:
    """The data of a regression.

    Attributes:
        key: (keys, dim), in floating point.
        value: (keys, outputs).
        weight: (keys,) positive, the number of repetitions of each row; None where all are 1.
    """

    key: Tensor
    value: Tensor
    weight: Tensor | None = None

    @cached_property
    def sorted(self) -> "SortedData":
        """The data in the order of their keys, which have one dimension; sorted once for all bandwidths."""
        return SortedData.of(self)

    @property
    def is_sortable(self) -> bool:
        """Whether the keys have one dimension. Data with gradients count as not sortable: they go through `attend`."""
        parts = (self.key, self.value) if self.weight is None else (self.key, self.value, self.weight)
        is_float = self.key.dtype in (torch.float32, torch.float64)
        return self.key.shape[-1] == 1 and is_float and not any(part.requires_grad for part in parts)

    @property
    def bias(self) -> Tensor | None:
        """The logarithms of the weights, (1, keys), as `attend` takes them; None where all weights are 1."""
        return None if self.weight is None else self.weight.log().unsqueeze(0)

    def take(self, rows: Tensor) -> "Observations":
        """Return some of the rows, by their positions or by a mask."""
        return Observations(self.key[rows], self.value[rows], None if self.weight is None else self.weight[rows])

    def queries_per_block(self, entries: int) -> int:
        """Return how many queries a block may have so that a number for each key, coordinate and output fits."""
        return max(entries // max(self.key.numel() + self.value.numel(), 1), 1)


class SortedData(NamedTuple):
    """One-dimensional data in the order of their keys, in float64.

    Attributes:
        key: (keys,), sorted.
        order: (keys,), the row of each key in the observations.
        weight: (keys,) or None.
        value: (outputs, keys), less their medians `centre`, so that an offset of the values costs no digits.
        centre: (outputs,).
        dtype: the dtype of the observations.
    """

    key: Tensor
    order: Tensor
    weight: Tensor | None
    value: Tensor
    centre: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, data: Observations) -> "SortedData":
        """Sort the data."""
        key = data.key[:, 0].double().contiguous()
        if bool((key[1:] >= key[:-1]).all()):
            order = torch.arange(len(key), device=key.device)
        else:
            key, order = sort(key)
        # torch 2.13 computes wrong medians of expanded tensors on a CPU, so the values are made contiguous.
        value = data.value.T.double().contiguous()
        centre = value.median(-1).values if len(key) else value.new_zeros(len(value))
        weight = None if data.weight is None else data.weight.double()[order]
        value = value[:, order].sub_(centre.unsqueeze(-1))
        return cls(key, order.to(index_dtype(key)), weight, value, centre, data.key.dtype)

    @property
    def channels(self) -> int:
        """The number of sums of each kind: one of the weights, and one for each output."""
        return 1 + len(self.value)

    @property
    def total_weight(self) -> float:
        """The weight of all keys."""
        return float(self.key.shape[0]) if self.weight is None else float(self.weight.sum())

    @property
    def log_weight_ratio(self) -> float:
        """The logarithm of the weight of all keys over the smallest weight of a key."""
        return math.log(self.total_weight) - (0.0 if self.weight is None else math.log(float(self.weight.min())))

    def between(self, first: int, after: int) -> "SortedData":
        """Return the keys from `first` to before `after`."""
        weight = None if self.weight is None else self.weight[first:after]
        key, order, value = self.key[first:after], self.order[first:after], self.value[:, first:after]
        return SortedData(key, order, weight, value, self.centre, self.dtype)

    def weighted(self, rows: slice) -> Tensor:
        """Return the weights, and the weights times each output: (1 + outputs, rows)."""
        value = self.value[:, rows]
        one = torch.ones_like(value[:1]) if len(value) else torch.ones_like(self.key[rows]).unsqueeze(0)
        both = torch.cat([one, value])
        return both if self.weight is None else both.mul_(self.weight[rows])


class PoolTask(NamedTuple):
    """What to pool (eq. 4).

    Attributes:
        query: (queries, dim).
        data: the observations.
        kernel: one of `regard.scores.kernels.KERNELS`.
        width: one number, one per dimension (dim,), or one per query (queries, 1).
        leave_out: None, or the queries are the keys in the same order, and each leaves out itself and that many rows on
            each side. With 0, a row of weight w leaves out min(w, 1) of itself: weights count repetitions, and of a row
            that is there twice one copy stays.
        moments: whether to compute the moments of the keys about each query; not with `leave_out`.
        tolerance: bounds |mean - exact| / (largest value - smallest value) at every query; None is the rounding of the
            dtype.
    """

    query: Tensor
    data: Observations
    kernel: Kernel
    width: float | Tensor
    leave_out: int | None = None
    moments: bool = False
    tolerance: float | None = None

    @property
    def has_width_per_query(self) -> bool:
        """Whether the width changes with the query."""
        return isinstance(self.width, Tensor) and self.width.ndim == 2

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key."""
        return len(self.query) * len(self.data.key)


class Moments(NamedTuple):
    """Moments of the keys about each query under the weights p of eq. 4, in the units of the data.

    Attributes:
        first: (queries, dim), sum p (k - q).
        second: (queries, dim, dim), sum p (k - q)(k - q)'.
        cross: (queries, dim, outputs), sum p (k - q) value'.
    """

    first: Tensor
    second: Tensor
    cross: Tensor


class Pool(NamedTuple):
    """The pooled values of each query (eq. 4).

    Attributes:
        mean: (queries, outputs), 0 where no key is in the window.
        log_mass: (queries,), log sum_j weight_j f(q, k_j), minus infinity where no key is in the window.
        moments: where the task asks for them.
    """

    mean: Tensor
    log_mass: Tensor
    moments: Moments | None = None


def sort(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers (n,) in increasing order, and the position of each before; ties in any order."""
    if numbers.device.type != "cpu":
        return numbers.sort()
    order = torch.from_numpy(np.argsort(numbers.numpy()))  # takes a quarter of the time of torch's sort
    return numbers.index_select(0, order), order


def index_dtype(numbers: Tensor) -> torch.dtype:
    """Return the smallest dtype of positions: they are kept for every query, in half the memory where they fit."""
    return torch.int32 if numbers.shape[0] < 2**31 - 1 else torch.int64
