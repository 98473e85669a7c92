"""One-dimensional sums of the Laplacian exp(-|q - k| / width), exact up to rounding, in linear time after sorting.

From one key to the next all terms to the left shrink by the same factor exp(-gap / width): the sum over the keys to
the left of a key is a running sum that decays, and so is the sum to the right. A query reads both at the keys next to
it and scales them by its distance to the nearer one, so that nothing underflows far away; leaving out itself, it reads
the keys on either side of its own. No two sums are subtracted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.line import KernelSums, SortedData, SortedQueries
from regard.regression.sums.observations import Pool
from regard.regression.sums.running import Chunk, chunks, rows_by_chunk, run


def pool(query: Tensor, line: SortedData, width: float, *, leaves_itself: bool = False, moments: bool = False) -> Pool:
    """Pool every query (queries, 1) over all keys (eq. 4)."""
    asked = SortedQueries.of(query, line, leaves_itself)
    totals = KernelSums.zero(asked, line, moments)
    if len(line.key) and len(asked.place):
        near = asked.nearest(line)
        # A row that leaves out itself and is alone has no other key at all.
        near.masked_fill_(near.isinf(), 0.0)
        totals.log_scale = near / -width
        gap = (line.key[1:] - line.key[:-1]) / width
        none = gap.new_zeros(1)
        _add_side(totals, asked, near, line, _Side(torch.cat([none, gap]), asked.left, 1, False), width)
        _add_side(totals, asked, near, line, _Side(torch.cat([gap, none]), asked.right, 0, True), width)
        totals.keep_own(asked, line)
    return totals.pool(asked, line, width)


class _Side(NamedTuple):
    """Keys to one side of the queries.

    gap: (keys,), to the key before in the direction of the sum, in widths. position: (queries,), minus back the key
    next to each query on this side.
    """

    gap: Tensor
    position: Tensor
    back: int
    is_right: bool


def _add_side(
    totals: KernelSums, asked: SortedQueries, near: Tensor, line: SortedData, side: _Side, width: float
) -> None:
    """Add the keys on one side of every query to the totals."""
    channels, keys = line.channels, len(line.key)
    powers = 1 if len(totals.sums) == channels else 3
    ranges = rows_by_chunk(side.position, keys, channels * powers, side.is_right, side.back)
    for (chunk, sums), rows in zip(_decaying(line, side, powers), ranges, strict=True):
        position = side.position[rows].long().sub_(side.back)
        there = (position >= 0) & (position < keys)
        position = position.clamp(0, keys - 1)
        away = (asked.place[rows] - line.key[position]).abs_()
        scale = ((near[rows] - away) / width).masked_fill_(~there, -torch.inf).exp_()
        found = sums.gather(1, chunk.find(position).expand(len(sums), -1)).mul_(scale)
        found = found.unflatten(0, (powers, channels))
        totals.sums[:channels, rows] += found[0]
        if powers > 1:
            # A key at v from the key next to the query is at v + away from the query.
            away = away.div_(width).mul_(there)
            sign = 1 if side.is_right else -1
            totals.sums[channels : 2 * channels, rows] += (found[1] + away * found[0]) * sign
            totals.sums[-1, rows] += found[2, 0] + away * (2 * found[1, 0] + away * found[0, 0])


def _decaying(line: SortedData, side: _Side, powers: int) -> Iterator[tuple[Chunk, Tensor]]:
    """Each chunk with its sums of w exp(-v) v^power, times 1 and y, about each key; (powers channels, 16 blocks).

    A step over a gap g turns v into v + g: the sum of v^2 exp(-v) takes from the sums of v exp(-v) and of exp(-v) at
    the key before, and these are known when its turn comes.
    """
    carry = [line.key.new_zeros(line.channels) for _ in range(powers)]
    for chunk in chunks(len(line.key), line.channels * powers, side.is_right):
        gap = chunk.arrange(side.gap[chunk.rows])
        factor = (-gap).exp_()
        sums = [chunk.arrange(line.weighted(chunk.rows))]
        if powers > 1:
            sums += [torch.zeros_like(sums[0]), torch.zeros_like(sums[0])]
        for power, terms in enumerate(sums):
            for lower in range(power):
                weight = factor * gap ** (power - lower) * (2 if (power, lower) == (2, 1) else 1)
                terms.addcmul_(_one_before(sums[lower], carry[lower]), weight)
            terms[:, 0, 0].addcmul_(carry[power], factor[0, 0])
            run(terms, factor)
        carry = [chunk.last(terms) for terms in sums]
        yield chunk, torch.cat(sums).flatten(1)


def _one_before(sums: Tensor, carry: Tensor) -> Tensor:
    """The running sums (channels, 16, blocks) of the key before each, with those of the chunk before at the start."""
    moved = torch.empty_like(sums)
    moved[:, 1:] = sums[:, :-1]
    moved[:, 0, 1:] = sums[:, -1, :-1]
    moved[:, 0, 0] = carry
    return moved
