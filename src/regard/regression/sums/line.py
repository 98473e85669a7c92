"""Sorted data and queries, exact pairs, and kernel sums before and after they are divided."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.regression.sums.observations import Moments, Observations, Pool


class SortedData(NamedTuple):
    """One-dimensional data in the order of their keys, in float64.

    data: as they came. key: (keys,) sorted. order: (keys,), where each stood before. weight: (keys,) or None.
    value: (outputs, keys) minus centre: (outputs,), the medians, so that an offset of the values costs no digits.
    """

    data: Observations
    key: Tensor
    order: Tensor
    weight: Tensor | None
    value: Tensor
    centre: Tensor

    @classmethod
    def of(cls, data: Observations) -> "SortedData":
        """Sort the data; data.key is (keys, 1)."""
        key = data.key[:, 0].double().contiguous()
        if bool((key[1:] >= key[:-1]).all()):
            order = torch.arange(len(key), device=key.device)
        else:
            key, order = _sorted(key)
        # The median of an expanded tensor is not to be trusted (torch 2.13 on a CPU): it is made contiguous.
        value = data.value.T.double().contiguous()
        centre = value.median(-1).values if len(key) else value.new_zeros(len(value))
        weight = None if data.weight is None else data.weight.double()[order]
        value = value[:, order].sub_(centre.unsqueeze(-1))
        return cls(data, key, order.to(_index_dtype(key)), weight, value, centre)

    @property
    def channels(self) -> int:
        """How many sums there are of each kind: one of the weights, one for each output."""
        return 1 + len(self.value)

    @property
    def index_dtype(self) -> torch.dtype:
        """Positions are kept for every query: in half the memory where they fit."""
        return _index_dtype(self.key)

    @property
    def total_weight(self) -> float:
        """The weight of all keys."""
        return float(self.key.shape[0]) if self.weight is None else float(self.weight.sum())

    @property
    def log_weight_spread(self) -> float:
        """The logarithm of all weight over the smallest weight of a key."""
        return math.log(self.total_weight) - (0.0 if self.weight is None else math.log(float(self.weight.min())))

    def weighted(self, rows: slice) -> Tensor:
        """The weights, and the weights times each output: (1 + outputs, rows)."""
        value = self.value[:, rows]
        one = torch.ones_like(value[:1]) if len(value) else torch.ones_like(self.key[rows]).unsqueeze(0)
        both = torch.cat([one, value])
        return both if self.weight is None else both.mul_(self.weight[rows])


class SortedQueries(NamedTuple):
    """Queries in the order of the line, and the keys next to each.

    place: (queries,) float64, sorted. order: (queries,), where each stood before, or None. left: (queries,), how many
    keys lie to the left, a key at the query included. right: (queries,), the first key to the right. Where a query
    leaves out itself, right is left + 1 and kept (queries,) is the weight that stays of it; None where all of it goes
    or nothing is left out.
    """

    place: Tensor
    order: Tensor | None
    left: Tensor
    right: Tensor
    kept: Tensor | None
    leaves_itself: bool

    @classmethod
    def of(cls, query: Tensor, line: SortedData, leaves_itself: bool) -> "SortedQueries":
        """query: (queries, 1); where each leaves out itself they are the keys in their first order."""
        if leaves_itself:
            own = torch.arange(line.key.shape[0], device=line.key.device, dtype=line.index_dtype)
            kept = None if line.weight is None else line.weight - line.weight.clamp(max=1)
            return cls(line.key, line.order, own, own + 1, kept, True)
        place, order = query[:, 0].double(), None
        if len(place) > 1 and not bool((place[1:] >= place[:-1]).all()):
            place, order = _sorted(place)
            order = order.to(_index_dtype(place))
        left = torch.searchsorted(line.key, place, right=True).to(line.index_dtype)
        return cls(place, order, left, left, None, False)

    def nearest_key(self, line: SortedData) -> Tensor:
        """The key nearest to each query, (queries,); infinite where there is none."""
        key = torch.cat([line.key.new_full((1,), -torch.inf), line.key, line.key.new_full((1,), torch.inf)])
        left, right = key[self.left], key[self.right + 1]
        near = torch.where(self.place - left <= right - self.place, left, right)
        return near if self.kept is None else torch.where(self.kept > 0, self.place, near)

    def nearest(self, line: SortedData) -> Tensor:
        """The distance of each query to its nearest key, (queries,); infinite where there is none."""
        return self.nearest_key(line).sub_(self.place).abs_()


def _sorted(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers (n,) in increasing order, equal ones in any, and where each stood before."""
    if numbers.device.type != "cpu":
        return numbers.sort()
    order = torch.from_numpy(np.argsort(numbers.numpy()))  # a quarter of the time of torch's
    return numbers.index_select(0, order), order


def _index_dtype(numbers: Tensor) -> torch.dtype:
    return torch.int32 if numbers.shape[0] < 2**31 - 1 else torch.int64


@dataclass
class KernelSums:
    """sum_j w_j f(q, k_j) times 1 and y_j; where moments are wanted also times u, u y_j and u^2, u = (k_j - q) / width.

    sums: (channels, queries), or (2 channels + 1, queries) with moments, in this order. log_scale: (queries,), the
    logarithm of what the sums are to be multiplied with, or None where that is 0.
    """

    sums: Tensor
    log_scale: Tensor | None

    @classmethod
    def zero(cls, asked: SortedQueries, line: SortedData, moments: bool) -> "KernelSums":
        """No key yet."""
        count = line.channels * 2 + 1 if moments else line.channels
        return cls(asked.place.new_zeros(count, asked.place.shape[0]), None)

    def overwrite(self, rows: Tensor, sums: Tensor, log_scale: Tensor) -> None:
        """Put other sums (count, rows) of another scale (rows,) into these rows."""
        if self.log_scale is None:
            self.log_scale = torch.zeros_like(self.sums[0])
        self.sums[:, rows] = sums
        self.log_scale[rows] = log_scale

    def keep_own(self, asked: SortedQueries, line: SortedData) -> None:
        """Add what stays of a row that leaves out itself: f(0) = 1, so its mass is the weight that stays."""
        if asked.kept is not None:
            self.sums[0] += asked.kept
            self.sums[1 : line.channels] += asked.kept * line.value

    def pool(self, asked: SortedQueries, line: SortedData, width: float) -> Pool:
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


def _first_order(numbers: Tensor, asked: SortedQueries, dtype: torch.dtype) -> Tensor:
    numbers = numbers.to(dtype)
    if asked.order is None:
        return numbers
    return torch.empty_like(numbers).scatter_(-1, asked.order.long().expand_as(numbers), numbers)


# Pairs that exist at once: 2 MiB for each of a handful of temporaries.
PAIRS = 2**18


class KeyRanges(NamedTuple):
    """Some of the queries, and the keys from first up to after that each one is summed over; (rows,) each.

    reference: a number of each row that the kernel is taken relative to.
    """

    rows: Tensor
    first: Tensor
    after: Tensor
    reference: Tensor

    def some(self, which: Tensor) -> "KeyRanges":
        """A part of them."""
        return KeyRanges(self.rows[which], self.first[which], self.after[which], self.reference[which])


# The logarithm of the kernel of keys (rows, keys) at places (rows, 1), relative to references (rows, 1).
LogRatio = Callable[[Tensor, Tensor, Tensor], Tensor]


def sum_pairs(
    totals: KernelSums,
    windows: KeyRanges,
    asked: SortedQueries,
    line: SortedData,
    log_ratio: LogRatio,
    width: float,
    log_reference: Tensor | None = None,
) -> None:
    """Overwrite the totals of these rows by their exact sums.

    log_reference: (rows,), the logarithm of what the kernel is relative to; None where that is 0.
    """
    size = windows.after - windows.first
    # Windows of like size make one table, so that a table is at most half empty.
    grade = size.clamp(min=1).double().log2_().ceil_()
    for power in grade.unique().tolist():
        members = (grade == power).nonzero().squeeze(-1)
        longest = int(size[members].max())
        for which in members.split(max(PAIRS // max(longest, 1), 1)):
            part = windows.some(which)
            sums, scale = _table(part, longest, asked, line, log_ratio, width, len(totals.sums))
            totals.overwrite(part.rows, sums, scale if log_reference is None else scale + log_reference[which])


def _table(
    windows: KeyRanges,
    longest: int,
    asked: SortedQueries,
    line: SortedData,
    log_ratio: LogRatio,
    width: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Sums (count, rows) and the logarithm of their scale (rows,): tile by tile, with a running maximum."""
    place, reference = asked.place[windows.rows].unsqueeze(-1), windows.reference.unsqueeze(-1)
    peak = torch.full_like(place, -torch.inf)
    sums = place.new_zeros(count, len(place))
    for start in range(0, longest, PAIRS):
        span = torch.arange(start, min(start + PAIRS, longest), device=place.device)
        position = windows.first.unsqueeze(-1) + span
        beyond = position >= windows.after.unsqueeze(-1)
        position = position.masked_fill_(beyond, 0)
        key = line.key[position]
        score, away = log_ratio(key, place, reference), key - place
        if line.weight is not None:
            score = score + line.weight[position].log_()
        if asked.leaves_itself:
            itself = asked.left[windows.rows].unsqueeze(-1)
            kept = torch.zeros_like(place) if asked.kept is None else asked.kept[windows.rows].unsqueeze(-1)
            score = torch.where(position == itself, kept.log(), score)
        score = score.masked_fill(beyond, -torch.inf)
        higher = torch.maximum(peak, score.amax(-1, keepdim=True))
        floor = higher.masked_fill(higher == -torch.inf, 0.0)
        sums.mul_((peak - floor).exp_().squeeze(-1))
        sums += _weighted((score - floor).exp_(), line.value[:, position], away / width, count)
        peak = higher
    return sums, peak.masked_fill(peak == -torch.inf, 0.0).squeeze(-1)


def _weighted(weights: Tensor, value: Tensor, away: Tensor, count: int) -> Tensor:
    """The sums of Totals over a tile: weights and away (rows, keys), value (outputs, rows, keys)."""
    found = [weights.sum(-1).unsqueeze(0), (weights * value).sum(-1)]
    if count > 1 + len(value):
        pull = weights * away
        found += [pull.sum(-1).unsqueeze(0), (pull * value).sum(-1), (pull * away).sum(-1).unsqueeze(0)]
    return torch.cat(found)
