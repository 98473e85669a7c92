"""Queries in blocks, each with keys among which are all that may have a weight there: on a line those nearby."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.regression import sums
from regard.regression.sums import Observations
from regard.regression.sums.line import SortedData
from regard.scores.kernels import KERNELS

if TYPE_CHECKING:
    from regard.regression.smoother import Smoother

# Neighbours that share their keys: any number of queries with narrow windows, wherever they lie, are compared with
# less than so many times all keys together.
NEIGHBOURS = 128
# e to minus this is 0, in float64 too.
FAINT = 750.0


class Seen(NamedTuple):
    """Keys that queries are compared with, and which rows of the data they are, (keys,)."""

    data: Observations
    row: Tensor


def everything(data: Observations) -> Seen:
    """All keys."""
    return Seen(data, torch.arange(len(data.key), device=data.key.device))


def neighbourhoods(
    smoother: "Smoother", query: Tensor, *, hidden: int = 0, pairs: int | None = None
) -> Iterator[tuple[Tensor, Seen]]:
    """The numbers of all queries, (some,) at a time, with the keys that they see.

    query: (queries, dim), in the coordinates of the keys. hidden: from how many keys, at most, each query is hidden.
    pairs: how many there may be at once; None for any number.
    """
    line = smoother.prepared
    kernel = None if smoother.adapts else smoother.kernel_at(query)
    if (
        not len(query)
        or kernel is None
        or not isinstance(line, SortedData)
        or not sums.can_pool_on_line(query, kernel, None)
    ):
        yield from _cut(torch.arange(len(query), device=query.device), everything(smoother.data), pairs)
        return
    place = query[:, 0].double()
    # Some roundings more: what has no weight after all gets none.
    reach = _reach(kernel.name, sums.width_of(kernel, line), place, line, hidden) * (1 + 2.0**-20)
    reach += 2.0**-50 * place.abs()
    for block in place.argsort().split(NEIGHBOURS):
        ends = torch.stack([(place[block] - reach[block]).amin(), (place[block] + reach[block]).amax()])
        first, after = torch.searchsorted(line.key, ends).tolist()
        first = min(first, len(line.key) - 1)
        row = line.order[first : max(after, first + 1)].long()
        yield from _cut(block, Seen(smoother.data.at(row), row), pairs)


def _cut(block: Tensor, seen: Seen, pairs: int | None) -> Iterator[tuple[Tensor, Seen]]:
    rows = max(len(block), 1) if pairs is None else seen.data.most_rows(pairs)
    yield from ((some, seen) for some in block.split(rows))


def _reach(kernel: str, width: float, place: Tensor, line: SortedData, hidden: int) -> Tensor:
    """How far from each place, (queries,), a key may be and have a weight beside that of the nearest one."""
    if KERNELS[kernel].is_compact:
        return torch.full_like(place, width)
    depth = FAINT + line.log_weight_spread
    # One of so many keys on either side is not hidden, so that the nearest one is no farther than the last of them.
    right = torch.searchsorted(line.key, place) + hidden
    left = right - 2 * hidden - 1
    nearest = torch.minimum(*(_distance(place, line.key, at) for at in (left, right)))
    if kernel == "laplacian":
        return nearest + depth * width
    return nearest.hypot(nearest.new_tensor(math.sqrt(2 * depth) * width))


def _distance(place: Tensor, key: Tensor, at: Tensor) -> Tensor:
    """To the key at that position, infinite where there is none."""
    there = (at >= 0) & (at < len(key))
    return (place - key[at.clamp(0, len(key) - 1)]).abs().masked_fill(~there, torch.inf)
