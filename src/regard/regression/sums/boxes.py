"""Compact kernels in two and three dimensions: neighbouring queries share the keys near their box.

A compact kernel is 0 beyond its width, so a block of neighbouring queries needs only the keys in the block's bounding
box grown by the width. These keys are found by boxes too, and pooled by `attend`: no weight is computed here.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard import Mask
from regard.regression.sums import all_pairs
from regard.regression.sums.observations import Moments, Pool, PoolTask

# Neighbouring queries per block: more have a larger box, fewer need more calls.
MAX_QUERIES, MIN_QUERIES, MIN_BLOCKS = 256, 16, 64
# Keys in a box.
KEYS_PER_BOX = 64
# Boxes of queries that are compared with all boxes of keys at once.
BOXES_PER_BLOCK = 32
# With fewer pairs, or if boxes leave more than this share of all pairs, all pairs take no longer.
MIN_PAIRS, MAX_SHARE = 2**22, 0.25
# Rounding of a coordinate, in units of the dtype's eps times the largest coordinate.
SLACK = 8.0


class Blocks(NamedTuple):
    """Blocks of neighbouring points, each with its bounding box; block b holds order[b size : (b + 1) size].

    Attributes:
        size: the number of points in a block; the last one may have fewer.
        order: (points,).
        low: (blocks, dim), the lower corners of the boxes.
        high: (blocks, dim), the upper corners.
    """

    size: int
    order: Tensor
    low: Tensor
    high: Tensor

    def members(self, block: int) -> Tensor:
        """Return the points of one block, (points of the block,)."""
        return self.order[block * self.size : (block + 1) * self.size]


def pack(points: Tensor, size: int, width: Tensor) -> Blocks:
    """Cut the points into slabs along the first dimension, each slab along the next, and so on.

    Args:
        points: (points, dim), at least one.
        size: the number of points in a block.
        width: (dim,), lengths in which a box should be about as long in every dimension: there are more slabs where
            the points extend over more widths.
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
    """Return how many points a slab of each dimension has: a whole number of slabs of the next one, at last blocks."""
    blocks = max(len(points) / size, 1)
    # The mean absolute deviation: one point far away changes it little.
    deviation = (points - points.mean(0)).abs().mean(0).double() / width.double()
    deviation = (deviation / deviation.max()).nan_to_num(1.0).clamp(min=1e-9)
    slabs = deviation * (blocks / float(deviation.prod())) ** (1 / len(deviation))
    below = [size]
    for count in reversed(slabs.tolist()[1:]):
        below.insert(0, below[0] * max(math.ceil(count), 1))
    return below


def supports(task: PoolTask) -> bool:
    """Whether the kernel is compact with one width or one per dimension, in two or three dimensions, on a CPU."""
    query, large = task.query, task.pairs >= MIN_PAIRS
    fits = task.kernel.is_compact and not task.has_width_per_query and task.leave_out in (None, 0)
    return fits and large and query.shape[-1] in (2, 3) and query.device.type == "cpu"


def pool(task: PoolTask) -> Pool:
    """Pool every query over the keys near it."""
    query, data = task.query, task.data
    width = torch.as_tensor(task.width, dtype=query.dtype, device=query.device).expand(query.shape[-1])
    size = min(max(len(query) // MIN_BLOCKS, MIN_QUERIES), MAX_QUERIES)
    queries, keys = pack(query, size, width), pack(data.key, KEYS_PER_BOX, width)
    largest = torch.maximum(query.abs().amax(0), data.key.abs().amax(0))
    near = _NearKeys(data.key[keys.order], keys, width + SLACK * torch.finfo(query.dtype).eps * (largest + width))
    if near.share(queries) > MAX_SHARE:
        return all_pairs.pool(task)
    pooled = _empty_pool(task)
    score = all_pairs.as_score(task.kernel, task.width)
    for block, found in near.keys_of(queries):
        rows, chosen = queries.members(block), keys.order[found]
        some = data.take(chosen)
        itself = None if task.leave_out is None else Mask.drop(chosen == rows.unsqueeze(-1))
        record = all_pairs.attended(query[rows], some, score, itself)
        if pooled.moments is not None:
            for whole, part in zip(pooled.moments, all_pairs.key_moments(query[rows], some, record), strict=True):
                whole[rows] = part
        if task.leave_out == 0 and data.weight is not None:
            record = all_pairs.add_remaining_copies(record, data.value[rows], data.weight[rows])
        pooled.mean[rows], pooled.log_mass[rows] = record.output, record.log_mass
    return pooled


class _NearKeys:
    """The keys near each box of queries."""

    def __init__(self, key: Tensor, boxes: Blocks, reach: Tensor) -> None:
        """key: (keys, dim) in the order of their boxes. reach: (dim,), how far away a key may be."""
        self.key = key
        self.low, self.high = boxes.low - reach, boxes.high + reach
        self.reach = reach
        self.within = torch.arange(boxes.size, device=key.device)

    def share(self, queries: Blocks) -> float:
        """Return the share of all pairs that the boxes leave, estimated on some of the queries' boxes."""
        some = slice(None, None, max(len(queries.low) // BOXES_PER_BLOCK, 1))
        return float(self._touch(queries.low[some], queries.high[some]).float().mean())

    def keys_of(self, queries: Blocks) -> Iterator[tuple[int, Tensor]]:
        """Yield each block of queries with the keys within reach of its box, as positions in `key`."""
        for start in range(0, len(queries.low), BOXES_PER_BLOCK):
            low, high = queries.low[start : start + BOXES_PER_BLOCK], queries.high[start : start + BOXES_PER_BLOCK]
            for at, touched in enumerate(self._touch(low, high)):
                positions = (touched.nonzero() * len(self.within) + self.within).flatten()
                positions = positions[positions < len(self.key)]
                key = self.key[positions]
                inside = (key >= low[at] - self.reach) & (key <= high[at] + self.reach)
                yield start + at, positions[inside.all(-1)]

    def _touch(self, low: Tensor, high: Tensor) -> Tensor:
        """Return which boxes of keys, grown by the reach, touch which of these boxes, (boxes, boxes of keys)."""
        touch = torch.ones(len(low), len(self.low), dtype=torch.bool, device=low.device)
        for dim in range(low.shape[-1]):
            touch &= self.low[:, dim] <= high[:, dim : dim + 1]
            touch &= self.high[:, dim] >= low[:, dim : dim + 1]
        return touch


def _empty_pool(task: PoolTask) -> Pool:
    """Return uninitialised memory for the results of all queries."""
    query, outputs = task.query, task.data.value.shape[-1]
    queries, dim = query.shape
    shapes = [(queries, dim), (queries, dim, dim), (queries, dim, outputs)]
    moments = Moments(*(query.new_empty(shape) for shape in shapes)) if task.moments else None
    return Pool(query.new_empty(queries, outputs), query.new_empty(queries), moments)
