"""One-dimensional sums of compact kernels, exact up to rounding, in linear time after sorting.

The keys are cut into cells a little wider than the kernel. In each cell running sums of w and w y, times the terms of
the kernel's expansion about the cell's centre, start at the left edge and, in the other direction, at the right edge.
Half a window is the end of one cell and the start of the next: two running sums, read off at the window's ends, and
nothing is subtracted. A value outside the window never enters, however large.

Error: with s and t the distances in widths of the query and the keys from the centre of the cell, a sum is off by a few
eps of size = sum_p |a_p(s)| sum_j w_j |b_p(t_j)|. Rows where that may exceed the tolerance, as a share of their kernel
mass, are summed pair by pair.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.cells import SPARE, Cells, Cover, cover
from regard.regression.sums.expansions import EXPANSIONS, SQUARES, Expansion
from regard.regression.sums.line import (
    KernelSums,
    KeyRanges,
    LogRatio,
    SortedData,
    SortedQueries,
    sum_pairs,
    tolerance_of,
)
from regard.regression.sums.observations import Pool
from regard.regression.sums.running import Chunk, rows_by_chunk, running_sums
from regard.regression.sums.windows import inside_of, window_ends
from regard.scores.kernels import KERNELS

# Roundings of eps that a running sum and its factors gather, generously: at a million keys one or two were seen.
ROUNDINGS = 4


def pool(
    query: Tensor,
    line: SortedData,
    name: str,
    width: float,
    *,
    leaves_itself: bool = False,
    moments: bool = False,
    squared: bool = False,
    tolerance: float | None = None,
) -> Pool:
    """Pool every query (queries, 1) over the keys of its window (eq. 4); squared: with the square of the kernel."""
    asked = SortedQueries.of(query, line, leaves_itself)
    totals = KernelSums.zero(asked, line, moments)
    if line.key.numel() and asked.place.numel():
        dtype = line.data.key.dtype
        first, after = window_ends(asked, line, width, inside_of(name, width, dtype))
        expansion = (SQUARES if squared else EXPANSIONS)[name]
        size, broken = _add_cells(totals, asked, line, (first, after), expansion, width)
        totals.keep_own(asked, line)
        size = size if asked.kept is None else size.add_(asked.kept)
        limit = tolerance_of(tolerance, dtype) / (ROUNDINGS * torch.finfo(torch.float64).eps)
        rows = broken.logical_or_(size > totals.sums[0] * limit).nonzero().squeeze(-1)
        if rows.numel():
            windows = KeyRanges(rows, first[rows], after[rows], torch.zeros_like(asked.place[rows]))
            sum_pairs(totals, windows, asked, line, _log_kernel(name, width, 2 if squared else 1), width)
        # The results need room for themselves: seventeen bytes a query are given back first.
        del first, after, size, broken, rows
    return totals.pool(asked, line, width)


def _log_kernel(name: str, width: float, power: int) -> LogRatio:
    """Return the logarithm of the kernel's power; a flat kernel is 1 for every key of its window."""
    if not KERNELS[name].is_differentiable:
        return lambda key, place, none: torch.zeros_like(key)
    return lambda key, place, none: power * KERNELS[name].log_of_ratio((key - place).square_() / width / width)


class _Sweep(NamedTuple):
    """Running sums in one direction, and where the two halves of each window read them; (queries,) each.

    A half reads at its position minus back.
    """

    left: Tensor
    left_used: Tensor
    right: Tensor
    right_used: Tensor
    back: int
    backward: bool


def _add_cells(
    totals: KernelSums,
    asked: SortedQueries,
    line: SortedData,
    ends: tuple[Tensor, Tensor],
    expansion: Expansion,
    width: float,
) -> tuple[Tensor, Tensor]:
    """Add both halves of every window to the totals.

    Returns the size that bounds the rounding error of each row, and which rows the cells do not make up.
    """
    first, after = ends
    cells = Cells.of(line.key, width)
    left, right = cover(cells, first, asked.left), cover(cells, asked.right, after)
    size = torch.zeros_like(asked.place)
    forward = _Sweep(asked.left, left.prefix, after, right.prefix, 1, False)
    _add_sweep(totals, size, forward, asked, line, cells, expansion, width)
    backward = _Sweep(first, left.suffix, asked.right, right.suffix, 0, True)
    _add_sweep(totals, size, backward, asked, line, cells, expansion, width)
    return size, _broken(left, right)


def _broken(left: Cover, right: Cover) -> Tensor:
    return left.broken | right.broken


def _add_sweep(
    totals: KernelSums,
    size: Tensor,
    sweep: _Sweep,
    asked: SortedQueries,
    line: SortedData,
    cells: Cells,
    expansion: Expansion,
    width: float,
) -> None:
    """Run the sums along the line, and read them off for both halves of the windows."""
    keys, channels = line.key.shape[0], line.channels
    power = 0 if totals.sums.shape[0] == channels else 2
    features = expansion.terms(power) * channels

    def terms(chunk: Chunk) -> Tensor:
        place = chunk.arrange((line.key[chunk.rows] - cells.centre[chunk.rows]).div_(width))
        return expansion.of_keys(place, chunk.arrange(line.weighted(chunk.rows)), power).flatten(0, 1)

    lefts = rows_by_chunk(sweep.left, keys, features, sweep.backward, sweep.back)
    rights = rows_by_chunk(sweep.right, keys, features, sweep.backward, sweep.back)
    same = cells.same.roll(-1) if sweep.backward else cells.same
    sums_by_chunk = running_sums(terms, same, features, backward=sweep.backward)
    for (chunk, sums), left, right in zip(sums_by_chunk, lefts, rights, strict=True):
        used = torch.cat([sweep.left_used[left], sweep.right_used[right]]).double()
        position = torch.cat([sweep.left[left], sweep.right[right]]).long().sub_(sweep.back).clamp_(0, keys - 1)
        centre = cells.centre.index_select(0, position)
        place = torch.cat([asked.place[left], asked.place[right]]).sub_(centre).mul_(used).div_(width)
        found = sums.gather(1, chunk.find(position).expand(features, -1))
        middle = left.stop - left.start
        bound = expansion.size(place.abs().add_(SPARE / 2), found[0] * used)
        size[left] += bound[:middle]
        size[right] += bound[middle:]
        sign = torch.ones_like(place)
        sign[middle:] = -1
        factors = expansion.of_queries(place.mul_(sign), used, power)
        expansion.mirror(factors, sign)
        part = _contract(factors, found.unflatten(0, (-1, channels)), sign, totals.sums.shape[0])
        totals.sums[:, left] += part[:, :middle]
        totals.sums[:, right] += part[:, middle:]


def _contract(factors: Tensor, found: Tensor, sign: Tensor, count: int) -> Tensor:
    """sum_p a_p(s) (sums of b_p): factors (power + 1, terms, rows), found (terms, channels, rows) -> (count, rows).

    The distance is v = |u|, and u is -sign v.
    """
    channels = found.shape[1]
    result = found.new_zeros(count, found.shape[2])
    plain, odd, even = result[:channels], result[channels : 2 * channels], result[-1]
    for sums, factor in zip(found.unbind(0), factors[0].unbind(0), strict=True):
        plain.addcmul_(sums, factor)
    if count > channels:
        for sums, factor, square in zip(found.unbind(0), factors[1].unbind(0), factors[2].unbind(0), strict=True):
            odd.addcmul_(sums, factor)
            even.addcmul_(sums[0], square)
        odd.mul_(sign).neg_()
    return result
