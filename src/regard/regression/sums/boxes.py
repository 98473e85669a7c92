"""Compact kernels in several dimensions in near-linear time: neighbouring queries share the keys near their box.

Every kernel here is 0 beyond its width, so a block of neighbouring queries needs only the keys in the block's box
grown by the width. These are found by boxes too, and pooled by the operator: no weight is computed here.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard import Mask
from regard.regression.sums import through_attend
from regard.regression.sums.packing import Packed, pack
from regard.regression.sums.record import Data, Kernel, Moments, Pool
from regard.scores.kernels import KERNELS

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


def suits(query: Tensor, data: Data, kernel: Kernel) -> bool:
    """Whether this is a compact kernel of one width, or one per dimension, in the plane or in space, on a CPU."""
    per_query = isinstance(kernel.width, Tensor) and kernel.width.ndim == 2
    compact = KERNELS[kernel.name].is_compact
    worth = len(query) * len(data.key) >= FEWEST_PAIRS
    return compact and not per_query and worth and query.shape[-1] in (2, 3) and query.device.type == "cpu"


def pool(query: Tensor, data: Data, kernel: Kernel, *, exclude: int | None = None, moments: bool = False) -> Pool:
    """Pool every query over the keys near it; as `through_attend.pool`, with exclude None or 0."""
    assert exclude in (None, 0), "rows beside a row are its neighbours in time, not in space"
    width = torch.as_tensor(kernel.width, dtype=query.dtype, device=query.device).expand(query.shape[-1])
    size = min(max(len(query) // FEWEST_BLOCKS, FEWEST_QUERIES), MOST_QUERIES)
    queries, keys = pack(query, size, width), pack(data.key, KEYS_AT_ONCE, width)
    largest = torch.maximum(query.abs().amax(0), data.key.abs().amax(0))
    near = _Near(data.key[keys.order], keys, width + SLACK * torch.finfo(query.dtype).eps * (largest + width))
    if near.share(queries) > LARGEST_SHARE:
        return through_attend.pool(query, data, kernel, exclude=exclude, moments=moments)
    pooled = _empty_pool(query, data, moments)
    score = through_attend.score_of(kernel)
    for block, found in near.keys_of(queries):
        rows, chosen = queries.members(block), keys.order[found]
        some = data.at(chosen)
        itself = None if exclude is None else Mask.drop(chosen == rows.unsqueeze(-1))
        record = through_attend.record_of(query[rows], some, score, itself)
        if pooled.moments is not None:
            for whole, part in zip(pooled.moments, through_attend.moments_of(query[rows], some, record), strict=True):
                whole[rows] = part
        if exclude == 0 and data.weight is not None:
            record = through_attend.with_copies_left(record, data.value[rows], data.weight[rows])
        pooled.mean[rows], pooled.log_mass[rows] = record.output, record.log_mass
    return pooled


class _Near:
    """The keys near each box of queries; key: (keys, dim) in the order of their own boxes."""

    def __init__(self, key: Tensor, boxes: Packed, reach: Tensor) -> None:
        self.key = key
        self.low, self.high = boxes.low - reach, boxes.high + reach
        self.reach = reach
        self.within = torch.arange(boxes.size, device=key.device)

    def share(self, queries: Packed) -> float:
        """The share of all pairs that boxes leave, estimated on some of the queries' boxes."""
        some = slice(None, None, max(len(queries.low) // BOXES_AT_ONCE, 1))
        return float(self._touch(queries.low[some], queries.high[some]).float().mean())

    def keys_of(self, queries: Packed) -> Iterator[tuple[int, Tensor]]:
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
        touch = torch.ones(len(low), len(self.low), dtype=torch.bool, device=low.device)
        for dim in range(low.shape[-1]):
            touch &= self.low[:, dim] <= high[:, dim : dim + 1]
            touch &= self.high[:, dim] >= low[:, dim : dim + 1]
        return touch


def _empty_pool(query: Tensor, data: Data, moments: bool) -> Pool:
    """Room for the results of all queries."""
    (queries, dim), outputs = query.shape, data.value.shape[-1]
    shapes = [(queries, dim), (queries, dim, dim), (queries, dim, outputs)]
    room = Moments(*(query.new_empty(shape) for shape in shapes)) if moments else None
    return Pool(query.new_empty(queries, outputs), query.new_empty(queries), room)
