"""Points in several dimensions packed into blocks of neighbours, each with the box that holds it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
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


def pack(points: Tensor, size: int, width: Tensor) -> Packed:
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
    return Packed(size, order, boxes.amin(1), boxes.amax(1))


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
