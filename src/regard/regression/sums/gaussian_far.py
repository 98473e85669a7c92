"""Gaussian sums of many queries that share a gap, or lie beyond the last key, by interpolation between exact sums.

For a query at D widths from the key at the edge of the gap, and a key t widths behind that edge,

    exp(-(D + t)^2 / 2) = exp(-D^2 / 2) exp(-D t - t^2 / 2).

The second factor is smooth in D: on an interval of D from 7/8 to 9/8 of its middle, 18 Chebyshev nodes give sums of it
with an error below 1e-22 for each unit of weight beside that of the edge (the largest of exp(-8 z) z^18 / 2^18 18!,
with z = D t / 8). So 18 exact sums in the log domain serve all queries of an interval.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.chebyshev import TERMS, nodes, polynomials
from regard.regression.sums.line import KernelSums, KeyRanges, SortedData, SortedQueries, sum_pairs

# The first interval starts at two widths; each is 9/7 times the one before; below 36 queries pairs are as cheap.
START, GROWTH, MANY = 2.0, 9 / 7, 36
# In widths; the square is still a number, and the nearest key is all that counts long before.
FARTHEST = 1e150
# More intervals than any distance in float64 reaches.
INTERVALS = 4096
ROWS = 2**15


class _Side(NamedTuple):
    """The keys on one side of the rows.

    edge: (rows,), the key next to each. distance: (rows,), to it in widths, infinite where there is none. counts:
    (rows,), whether its keys matter beside the nearest one. interval: (rows,), a number for each edge and interval of
    distances.
    """

    edge: Tensor
    distance: Tensor
    counts: Tensor
    interval: Tensor
    is_right: bool


def fill_far(
    totals: KernelSums, rows: Tensor, asked: SortedQueries, line: SortedData, width: float, depth: float
) -> Tensor:
    """Fill the totals of those rows that share an interval with many others; which they are, (rows,).

    depth: keys whose kernel is below exp(-depth) of the nearest key's do not matter.
    """
    place, left = asked.place[rows], asked.left[rows].long()
    edges, keys = (left - 1, left), line.key.shape[0]
    distances = []
    for edge in edges:
        there = (edge >= 0) & (edge < keys)
        away = ((place - line.key[edge.clamp(0, keys - 1)]).abs_() / width).clamp_(max=FARTHEST)
        distances.append(away.masked_fill_(~there, torch.inf))
    near = torch.minimum(*distances)
    filled = near >= START
    sides = []
    for edge, distance, is_right in zip(edges, distances, (False, True), strict=True):
        counts = (distance == near) | ((distance - near) * (distance + near) <= 2 * depth)
        interval = (distance.clamp(START, 1e300) / START).log_().div_(math.log(GROWTH)).floor_().long()
        interval += edge * INTERVALS
        _, which, sizes = interval.unique(return_inverse=True, return_counts=True)
        filled &= ~counts | (sizes[which] >= MANY)
        sides.append(_Side(edge, distance, counts, interval, is_right))
    if filled.any():
        totals.overwrite(rows[filled], totals.sums.new_zeros(()), -0.5 * near[filled].square())
        for side in sides:
            _add_side(totals, rows, near, filled & side.counts, side, line, width, depth)
    return filled


def _add_side(
    totals: KernelSums,
    rows: Tensor,
    near: Tensor,
    chosen: Tensor,
    side: _Side,
    line: SortedData,
    width: float,
    depth: float,
) -> None:
    """Add the keys on one side to the chosen rows, in units of the kernel of the nearest key."""
    chosen = chosen.nonzero().squeeze(-1)
    if not chosen.numel():
        return
    intervals, which = side.interval[chosen].unique(return_inverse=True)
    edge = intervals.div(INTERVALS, rounding_mode="floor")
    start = START * GROWTH ** (intervals - edge * INTERVALS).double()
    coefficients = _coefficients(edge, start, side.is_right, line, width, depth, totals.sums.shape[0])
    for some, mine in zip(chosen.split(ROWS), which.split(ROWS), strict=True):
        distance = side.distance[some]
        basis = polynomials((distance / start[mine] - 8 / 7) * 7)
        sums = torch.einsum("pr,crp->cr", basis, coefficients[:, mine])
        if sums.shape[0] > line.channels:
            _about_the_query(sums, distance if not side.is_right else -distance, line.channels)
        further = distance - near[some]
        scale = torch.where(further == 0, 1.0, (-0.5 * further * (distance + near[some])).exp())
        totals.sums[:, rows[some]] += sums * scale


def _coefficients(
    edge: Tensor, start: Tensor, is_right: bool, line: SortedData, width: float, depth: float, count: int
) -> Tensor:
    """Of the sums about each edge as functions of the distance, (count, intervals, 18)."""
    node, values_to_coefficients = nodes(line.key)
    distance = (start.unsqueeze(-1) * (8 + node) / 7).flatten()
    place = line.key[edge]
    radius = 2 * depth / (start + (start.square() + 2 * depth).sqrt()) * width
    if is_right:
        first, after = edge, torch.searchsorted(line.key, place + radius, right=True)
    else:
        first, after = torch.searchsorted(line.key, place - radius), edge + 1
    first, after, place = (each.repeat_interleave(TERMS) for each in (first, after, place))
    asked = SortedQueries(place, None, first, first, None, False)
    sums = KernelSums.zero(asked, line, count > line.channels)

    def log_ratio(key: Tensor, edge: Tensor, distance: Tensor) -> Tensor:
        # t (t + 2 D) / 2 with t from the edge: the query itself has no place that would have to be rounded.
        behind = (key - edge).abs_() / width
        return torch.where(behind == 0, 0.0, -0.5 * behind * (behind + 2 * distance))

    rows = torch.arange(place.shape[0], device=place.device)
    sum_pairs(sums, KeyRanges(rows, first, after, distance), asked, line, log_ratio, width)
    scaled = sums.sums if sums.log_scale is None else sums.sums * sums.log_scale.exp()
    return scaled.unflatten(1, (-1, TERMS)) @ values_to_coefficients.T


def _about_the_query(sums: Tensor, ahead: Tensor, channels: int) -> None:
    """Moments about the edge to moments about the query, which is ahead of it by so many widths."""
    plain, first = sums[:channels], sums[channels : 2 * channels]
    sums[-1] += ahead * (ahead * plain[0] - 2 * first[0])
    first -= ahead * plain
