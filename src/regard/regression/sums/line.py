"""Data on a line, sorted once for many widths, and the queries in the order of the line."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.regression.sums.record import Data


class Line(NamedTuple):
    """One-dimensional data in the order of their keys, in float64.

    data: as they came. key: (keys,) sorted. order: (keys,), where each stood before. weight: (keys,) or None.
    value: (outputs, keys) minus centre: (outputs,), the medians, so that an offset of the values costs no digits.
    """

    data: Data
    key: Tensor
    order: Tensor
    weight: Tensor | None
    value: Tensor
    centre: Tensor

    @classmethod
    def of(cls, data: Data) -> "Line":
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


class Asked(NamedTuple):
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
    def of(cls, query: Tensor, line: Line, leaves_itself: bool) -> "Asked":
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

    def nearest_key(self, line: Line) -> Tensor:
        """The key nearest to each query, (queries,); infinite where there is none."""
        key = torch.cat([line.key.new_full((1,), -torch.inf), line.key, line.key.new_full((1,), torch.inf)])
        left, right = key[self.left], key[self.right + 1]
        near = torch.where(self.place - left <= right - self.place, left, right)
        return near if self.kept is None else torch.where(self.kept > 0, self.place, near)

    def nearest(self, line: Line) -> Tensor:
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
