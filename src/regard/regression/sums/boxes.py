"""Compact kernels in several dimensions in near-linear time: neighbouring queries share the keys near their box.

Every kernel here is 0 beyond its width, so a block of neighbouring queries needs only the keys in the block's box
grown by the width. These are found by boxes too, and pooled by the operator: no weight is computed here.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard import Mask
from regard.regression.sums import all_pairs
from regard.regression.sums.observations import Kernel, Moments, Observations, Pool
from regard.scores.kernels import KERNELS


class Blocks(NamedTuple):
    """Blocks of `size` points each, the last one shorter; block b holds the points order[b size : (b + 1) size].

    order: (points,). low, high: the corners of the boxes, (blocks, dim).
    """

    size: int
    order: Tensor
    low: Tensor
    high: Tensor

    def members(self, block: int) -> Tensor:
        """The points of one block, (points of the block,)."""
        return self.order[block * self.size : (block + 1) * self.size]


def pack(points: Tensor, size: int, width: Tensor) -> Blocks:
    """Cut the points into slabs of as many points along the first dimension, each slab along the next, and so on.

    points: (points, dim), at least one. width: (dim,), lengths in which a box should be about as long in every
    dimension: there are more slabs where the points spread over more widths.
    """
    order = torch.argsort(points[:, 0])
    below = _points_below(points, size, width)
    for dim in range(1, points.shape[-1]):
        inner = torch.argsort(points[order, dim])
        # A stable sort by slab leaves each slab sorted by the coordinate.
        order = order[inner[torch.argsort(inner // below[dim - 1], stable=True)]]
    blocks = -(-len(points) // size)
    last = order[-1:].expand(blocks * size - len(points))
    boxes = points[torch.cat([order, last])].unflatten(0, (blocks, size))
    return Blocks(size, order, boxes.amin(1), boxes.amax(1))


def _points_below(points: Tensor, size: int, width: Tensor) -> list[int]:
    """How many points a slab of each dimension has: a whole number of slabs of the next one, in the end of blocks."""
    blocks = max(len(points) / size, 1)
    # The mean distance from the mean: one point far away does not change it much.
    spread = (points - points.mean(0)).abs().mean(0).double() / width.double()
    spread = (spread / spread.max()).nan_to_num(1.0).clamp(min=1e-9)
    slabs = spread * (blocks / float(spread.prod())) ** (1 / len(spread))
    below = [size]
    for count in reversed(slabs.tolist()[1:]):
        below.insert(0, below[0] * max(math.ceil(count), 1))
    return below


# Neighbouring queries that are pooled together: more of them have a larger box, fewer are more calls.
MOST_QUERIES, FEWEST_QUERIES, FEWEST_BLOCKS = 256, 16, 64
# Keys that are looked at together when those near a box are sought.
KEYS_AT_ONCE = 64
# Boxes of queries that are compared with all boxes of keys at once.
BOXES_AT_ONCE = 32
# Below so many pairs all of them are as fast, and unless boxes leave out most of them too.
FEWEST_PAIRS, LARGEST_SHARE = 2**22, 0.25
# What a rounded coordinate may be off by, in units of the dtype's eps and of the largest coordinate.
SLACK = 8.0


def suits(query: Tensor, data: Observations, kernel: Kernel) -> bool:
    """Whether this is a compact kernel of one width, or one per dimension, in the plane or in space, on a CPU."""
    per_query = isinstance(kernel.width, Tensor) and kernel.width.ndim == 2
    compact = KERNELS[kernel.name].is_compact
    worth = len(query) * len(data.key) >= FEWEST_PAIRS
    return compact and not per_query and worth and query.shape[-1] in (2, 3) and query.device.type == "cpu"


def pool(
    query: Tensor, data: Observations, kernel: Kernel, *, exclude: int | None = None, moments: bool = False
) -> Pool:
    """Pool every query over the keys near it; as `through_attend.pool`, with exclude None or 0."""
    assert exclude in (None, 0), "rows beside a row are its neighbours in time, not in space"
    width = torch.as_tensor(kernel.width, dtype=query.dtype).expand(query.shape[-1])
    size = min(max(len(query) // FEWEST_BLOCKS, FEWEST_QUERIES), MOST_QUERIES)
    queries, keys = pack(query, size, width), pack(data.key, KEYS_AT_ONCE, width)
    largest = torch.maximum(query.abs().amax(0), data.key.abs().amax(0))
    near = _Near(data.key[keys.order], keys, width + SLACK * torch.finfo(query.dtype).eps * (largest + width))
    if near.share(queries) > LARGEST_SHARE:
        return all_pairs.pool(query, data, kernel, exclude=exclude, moments=moments)
    pooled = _empty_pool(query, data, moments)
    score = all_pairs.as_score(kernel)
    for block, found in near.keys_of(queries):
        rows, chosen = queries.members(block), keys.order[found]
        some = data.at(chosen)
        itself = None if exclude is None else Mask.drop(chosen == rows.unsqueeze(-1))
        record = all_pairs.attended(query[rows], some, score, itself)
        if pooled.moments is not None:
            for whole, part in zip(pooled.moments, all_pairs.key_moments(query[rows], some, record), strict=True):
                whole[rows] = part
        if exclude == 0 and data.weight is not None:
            record = all_pairs.add_remaining_copies(record, data.value[rows], data.weight[rows])
        pooled.mean[rows], pooled.log_mass[rows] = record.output, record.log_mass
    return pooled


class _Near:
    """The keys near each box of queries; key: (keys, dim) in the order of their own boxes."""

    def __init__(self, key: Tensor, boxes: Blocks, reach: Tensor) -> None:
        self.key = key
        self.low, self.high = boxes.low - reach, boxes.high + reach
        self.reach = reach
        self.within = torch.arange(boxes.size)

    def share(self, queries: Blocks) -> float:
        """The share of all pairs that boxes leave, estimated on some of the queries' boxes."""
        some = slice(None, None, max(len(queries.low) // BOXES_AT_ONCE, 1))
        return float(self._touch(queries.low[some], queries.high[some]).float().mean())

    def keys_of(self, queries: Blocks) -> Iterator[tuple[int, Tensor]]:
        """Each block of queries with the keys within reach of its box, as places in `key`."""
        for start in range(0, len(queries.low), BOXES_AT_ONCE):
            low, high = queries.low[start : start + BOXES_AT_ONCE], queries.high[start : start + BOXES_AT_ONCE]
            for at, touched in enumerate(self._touch(low, high)):
                places = (touched.nonzero() * len(self.within) + self.within).flatten()
                places = places[places < len(self.key)]
                key = self.key[places]
                inside = (key >= low[at] - self.reach) & (key <= high[at] + self.reach)
                yield start + at, places[inside.all(-1)]

    def _touch(self, low: Tensor, high: Tensor) -> Tensor:
        """Which boxes of keys, grown by the reach, touch which of these boxes, (boxes, boxes of keys)."""
        touch = torch.ones(len(low), len(self.low), dtype=torch.bool)
        for dim in range(low.shape[-1]):
            touch &= self.low[:, dim] <= high[:, dim : dim + 1]
            touch &= self.high[:, dim] >= low[:, dim : dim + 1]
        return touch


def _empty_pool(query: Tensor, data: Observations, moments: bool) -> Pool:
    """Room for the results of all queries."""
    (queries, dim), outputs = query.shape, data.value.shape[-1]
    shapes = [(queries, dim), (queries, dim, dim), (queries, dim, outputs)]
    room = Moments(*(query.new_empty(shape) for shape in shapes)) if moments else None
    return Pool(query.new_empty(queries, outputs), query.new_empty(queries), room)
