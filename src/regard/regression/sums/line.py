"""Kernel sums along a line: place the sorted queries among the sorted keys, accumulate, complete exactly, divide.

A `LineMethod` adds all keys to the sums of every query and returns the queries whose error bound exceeds the tolerance.
These are summed pair by pair in the log domain, over the keys that can contribute (`sum_pairs`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.regression.sums.observations import Moments, Pool, PoolTask, SortedData, index_dtype, sort
from regard.scores.kernels import Kernel

# Pairs in a table of `sum_pairs`: each of its temporaries has 2 MiB.
PAIRS = 2**18

Width = float | Tensor
"""One number, or (queries,) float64 in the order of the queries."""


LogKernel = Callable[[Tensor, Tensor, Tensor, Width], Tensor]
"""log f of key, query, reference and width, as `LineMethod.log_kernel` returns it."""


class SortedQueries(NamedTuple):
    """Queries in increasing order, and the keys beside each.

    Attributes:
        position: (queries,) float64, sorted.
        order: (queries,), the row of each query in the task; None if the task has them in this order.
        left: (queries,), the number of keys to the left, a key at the query included.
        right: (queries,), the first key to the right. It is left, or left + 1 where each query leaves out itself.
        remaining_weight: (queries,), the weight that a query which leaves out one copy of itself keeps; None where
            nothing is left out, or all of each row.
        leave_one_out: whether each query leaves out itself.
    """

    position: Tensor
    order: Tensor | None
    left: Tensor
    right: Tensor
    remaining_weight: Tensor | None
    leave_one_out: bool

    @classmethod
    def of(cls, query: Tensor, data: SortedData, leave_one_out: bool) -> "SortedQueries":
        """Sort the queries (queries, 1). With `leave_one_out` they are the keys, in the order of the observations."""
        if leave_one_out:
            row = torch.arange(data.key.shape[0], device=data.key.device, dtype=index_dtype(data.key))
            remaining = None if data.weight is None else data.weight - data.weight.clamp(max=1)
            return cls(data.key, data.order, row, row + 1, remaining, True)
        position, order = query[:, 0].double(), None
        if len(position) > 1 and not bool((position[1:] >= position[:-1]).all()):
            position, order = sort(position)
            order = order.to(index_dtype(position))
        left = torch.searchsorted(data.key, position, right=True).to(index_dtype(data.key))
        return cls(position, order, left, left, None, False)

    def take(self, rows: Tensor) -> "SortedQueries":
        """Return some of the queries, in their order."""
        remaining = None if self.remaining_weight is None else self.remaining_weight[rows]
        return SortedQueries(
            self.position[rows], None, self.left[rows], self.right[rows], remaining, self.leave_one_out
        )

    def nearest_key(self, data: SortedData) -> Tensor:
        """Return the key nearest to each query, (queries,); infinite where there is none."""
        key = torch.cat([data.key.new_full((1,), -torch.inf), data.key, data.key.new_full((1,), torch.inf)])
        left, right = key[self.left], key[self.right + 1]
        nearest = torch.where(self.position - left <= right - self.position, left, right)
        if self.remaining_weight is None:
            return nearest
        return torch.where(self.remaining_weight > 0, self.position, nearest)

    def in_task_order(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Return numbers (..., queries) in the order of the task."""
        numbers = numbers.to(dtype)
        if self.order is None:
            return numbers
        return torch.empty_like(numbers).scatter_(-1, self.order.long().expand_as(numbers), numbers)


@dataclass
class KernelSums:
    """sum_j w_j f(q, k_j) times 1 and y_j; with moments also times u, u y_j and u^2, where u = (k_j - q) / width.

    Attributes:
        sums: (channels, queries), or (2 channels + 1, queries) with moments, in this order.
        log_scale: (queries,), the logarithm of the number that the sums are to be multiplied by; None where it is 0.
    """

    sums: Tensor
    log_scale: Tensor | None

    @classmethod
    def zeros(cls, queries: SortedQueries, data: SortedData, moments: bool) -> "KernelSums":
        """Return the sums over no key."""
        count = data.channels * 2 + 1 if moments else data.channels
        return cls(queries.position.new_zeros(count, queries.position.shape[0]), None)

    def overwrite(self, rows: Tensor, sums: Tensor, log_scale: Tensor) -> None:
        """Replace the sums of some rows by sums (count, rows) of another scale (rows,)."""
        if self.log_scale is None:
            self.log_scale = torch.zeros_like(self.sums[0])
        self.sums[:, rows] = sums
        self.log_scale[rows] = log_scale

    def add_remaining_copies(self, queries: SortedQueries, data: SortedData) -> None:
        """Add what remains of rows that leave out one copy of themselves; f(0) = 1, so their mass is their weight."""
        if queries.remaining_weight is not None:
            self.sums[0] += queries.remaining_weight
            self.sums[1 : data.channels] += queries.remaining_weight * data.value

    def divide(self, queries: SortedQueries, data: SortedData, width: Width) -> Pool:
        """Divide by the mass, and return the pools in the order of the task. This overwrites the sums."""
        channels = data.channels
        mass = self.sums[0]
        empty = ~(mass > 0)
        # Clamp: the log mass can overflow far from the data, and -inf is reserved for empty windows.
        log_mass = mass.log() if self.log_scale is None else mass.log().add_(self.log_scale)
        log_mass.clamp_(min=torch.finfo(torch.float64).min).masked_fill_(empty, -math.inf)
        ratio = self.sums[1:].div_(mass).masked_fill_(empty, 0.0)
        moments = None
        if len(ratio) >= channels:
            first = ratio[channels - 1]
            cross = ratio[channels : 2 * channels - 1] + data.centre.unsqueeze(-1) * first
            second = ratio[-1]
            moments = Moments(
                queries.in_task_order(first * width, data.dtype).unsqueeze(-1),
                queries.in_task_order(second * width**2, data.dtype)[:, None, None],
                queries.in_task_order(cross * width, data.dtype).T.unsqueeze(1),
            )
        mean = ratio[: channels - 1].add_(data.centre.unsqueeze(-1)).masked_fill_(empty, 0.0)
        return Pool(queries.in_task_order(mean, data.dtype).T, queries.in_task_order(log_mass, data.dtype), moments)


class KeyRanges(NamedTuple):
    """Queries to sum pair by pair, each over the keys from `first` to before `after`; all (rows,).

    Attributes:
        rows: the queries, by their position among the sorted queries.
        first: the first key.
        after: the key after the last.
        reference: a key that the kernel is computed relative to, where the method does so.
        log_reference: log f at the reference; None if the kernel is not computed relative to one.
    """

    rows: Tensor
    first: Tensor
    after: Tensor
    reference: Tensor
    log_reference: Tensor | None = None

    def take(self, which: Tensor) -> "KeyRanges":
        """Return a part of them."""
        log_reference = None if self.log_reference is None else self.log_reference[which]
        rows, first, after, reference = (part[which] for part in (self.rows, self.first, self.after, self.reference))
        return KeyRanges(rows, first, after, reference, log_reference)


class LineMethod(Protocol):
    """One way to compute kernel sums along sorted keys."""

    def __init__(
        self, kernel: Kernel, width: Width, queries: SortedQueries, data: SortedData, tolerance: float
    ) -> None:
        """Keep what is to be pooled. There is at least one key and one query."""
        ...

    def accumulate(self, sums: KernelSums) -> KeyRanges | None:
        """Add all keys to the sums; return the rows whose error bound exceeds the tolerance, None if there are none."""
        ...

    def log_kernel(self, key: Tensor, query: Tensor, reference: Tensor, width: Width) -> Tensor:
        """Return log f, or log f(key) / f(reference); key (rows, keys), query, reference and width (rows, 1)."""
        ...


def pool(task: PoolTask, method: type[LineMethod]) -> Pool:
    """Pool every query by a method for sorted keys."""
    data = task.data.sorted
    queries = SortedQueries.of(task.query, data, task.leave_out is not None)
    width = line_width(task, queries)
    sums = KernelSums.zeros(queries, data, task.moments)
    if data.key.numel() and queries.position.numel():
        computation = method(task.kernel, width, queries, data, default_tolerance(task.tolerance, data.dtype))
        inexact = computation.accumulate(sums)
        if inexact is not None:
            sum_pairs(sums, inexact, queries, data, width, computation.log_kernel)
        # Free the temporaries before allocating the results: it lowers the peak by 17 bytes a query.
        del computation, inexact
    return sums.divide(queries, data, width)


def line_width(task: PoolTask, queries: SortedQueries) -> Width:
    """Return the width as `attend` takes it: rounded to the dtype of the data."""
    if not task.has_width_per_query:
        return torch.as_tensor(task.width, dtype=task.data.key.dtype, device="cpu").item()
    width = torch.as_tensor(task.width, device="cpu")[:, 0].double()
    return width if queries.order is None else width[queries.order.long()]


def default_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """Return the tolerance: by default the rounding of float32, and in float64 what sums of millions of terms keep."""
    if tolerance is not None:
        return tolerance
    return 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps / 2


def at_rows(width: Width, rows: Tensor | slice) -> Width:
    """Return the width at some rows."""
    return width[rows] if isinstance(width, Tensor) else width


def sum_pairs(
    sums: KernelSums,
    ranges: KeyRanges,
    queries: SortedQueries,
    data: SortedData,
    width: Width,
    log_kernel: LogKernel,
) -> None:
    """Overwrite the sums of these rows by exact ones, pair by pair in the log domain."""
    size = ranges.after - ranges.first
    # Ranges of similar size share a table, so that a table is at most half empty.
    exponent = size.clamp(min=1).double().log2_().ceil_()
    for power in exponent.unique().tolist():
        members = (exponent == power).nonzero().squeeze(-1)
        longest = int(size[members].max())
        for which in members.split(max(PAIRS // max(longest, 1), 1)):
            part = ranges.take(which)
            found, scale = _sum_table(part, longest, queries, data, width, log_kernel, len(sums.sums))
            sums.overwrite(part.rows, found, scale if part.log_reference is None else scale + part.log_reference)


def _sum_table(
    ranges: KeyRanges,
    longest: int,
    queries: SortedQueries,
    data: SortedData,
    width: Width,
    log_kernel: LogKernel,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Return sums (count, rows) and the logarithm of their scale (rows,): tile by tile, with a running maximum."""
    position, reference = queries.position[ranges.rows].unsqueeze(-1), ranges.reference.unsqueeze(-1)
    width = width[ranges.rows].unsqueeze(-1) if isinstance(width, Tensor) else width
    peak = torch.full_like(position, -torch.inf)
    sums = position.new_zeros(count, len(position))
    for start in range(0, longest, PAIRS):
        span = torch.arange(start, min(start + PAIRS, longest), device=position.device)
        index = ranges.first.unsqueeze(-1) + span
        beyond = index >= ranges.after.unsqueeze(-1)
        index = index.masked_fill_(beyond, 0)
        key = data.key[index]
        score, difference = log_kernel(key, position, reference, width), key - position
        if data.weight is not None:
            score = score + data.weight[index].log_()
        if queries.leave_one_out:
            itself = queries.left[ranges.rows].unsqueeze(-1)
            remaining = queries.remaining_weight
            remaining = torch.zeros_like(position) if remaining is None else remaining[ranges.rows].unsqueeze(-1)
            score = torch.where(index == itself, remaining.log(), score)
        score = score.masked_fill(beyond, -torch.inf)
        higher = torch.maximum(peak, score.amax(-1, keepdim=True))
        floor = higher.masked_fill(higher == -torch.inf, 0.0)
        sums.mul_((peak - floor).exp_().squeeze(-1))
        sums += _weighted_sums((score - floor).exp_(), data.value[:, index], difference / width, count)
        peak = higher
    return sums, peak.masked_fill(peak == -torch.inf, 0.0).squeeze(-1)


def _weighted_sums(weights: Tensor, value: Tensor, u: Tensor, count: int) -> Tensor:
    """Return the sums of KernelSums over a tile: weights and u (rows, keys), value (outputs, rows, keys)."""
    found = [weights.sum(-1).unsqueeze(0), (weights * value).sum(-1)]
    if count > 1 + len(value):
        first = weights * u
        found += [first.sum(-1).unsqueeze(0), (first * value).sum(-1), (first * u).sum(-1).unsqueeze(0)]
    return torch.cat(found)
