"""Kernel sums that a recurrence carries along the line, exact up to rounding: fast sum updating.

*Compact kernels.* On each side of a query a compact kernel is a polynomial in the distance, so a sum over half a window
follows from sums of w, w t, w t^2, ... over its keys. The keys are cut into cells about one bandwidth wide, t is
measured from the centre of the cell, and running sums start anew in each cell, once from the left and once from the
right. Half a window is the end of one cell and the start of the next (and a whole cell between them, where bandwidths
change with the query), so every sum is read off and nothing is subtracted: a value outside the window never enters,
however large.

*Laplacian.* From one key to the next all terms to the left shrink by the same factor exp(-gap / width), so the sum over
the keys to the left is a running sum that decays.

References:
    N. Langrené and X. Warin, Fast and stable multivariate kernel density estimation by fast sum updating, Journal of
    Computational and Graphical Statistics 28 (2019). The cells replace their differences of global running sums, which
    lose digits.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.regression.sums.line import KernelSums, KeyRanges, SortedQueries, Width, at_rows
from regard.regression.sums.observations import SortedData
from regard.scores.kernels import Kernel

# --- Segmented scans ---------------------------------------------------------------------------------------------

# A chunk is laid out as (16, blocks), with 16 neighbours in a column: 15 operations on rows scan all blocks at once.
BLOCK_BITS = 4
BLOCK = 2**BLOCK_BITS
# Numbers in a chunk of terms: 4 MiB, which stay in cache.
CHUNK = 2**19


class Chunk:
    """The keys from `start` to before `stop`, in the layout of a scan; in reverse where `reverse`."""

    def __init__(self, start: int, stop: int, reverse: bool) -> None:
        """Keep the range and the direction."""
        self.start, self.stop, self.reverse = start, stop, reverse
        self.blocks = -(-(stop - start) // BLOCK)

    @property
    def rows(self) -> slice:
        """The keys of this chunk."""
        return slice(self.start, self.stop)

    def arrange(self, numbers: Tensor) -> Tensor:
        """Return numbers (..., stop - start) as (..., 16, blocks), padded with zeros."""
        numbers = numbers.flip(-1) if self.reverse else numbers
        missing = self.blocks * BLOCK - numbers.shape[-1]
        numbers = torch.nn.functional.pad(numbers, (0, missing)) if missing else numbers
        return numbers.unflatten(-1, (self.blocks, BLOCK)).mT.contiguous()

    def find(self, position: Tensor) -> Tensor:
        """Return where the sums at these keys are in the flattened layout."""
        position = position.long()
        local = self.stop - 1 - position if self.reverse else position - self.start
        return (local & (BLOCK - 1)).mul_(self.blocks).add_(local >> BLOCK_BITS)

    def last(self, sums: Tensor) -> Tensor:
        """Return the sums at the end of the chunk, (features,), of sums (features, 16, blocks)."""
        final = self.stop - self.start - 1
        return sums[:, final % BLOCK, final // BLOCK].clone()


def segmented_scan(
    terms: Callable[[Chunk], Tensor], carry: Tensor, features: int, *, reverse: bool
) -> Iterator[tuple[Chunk, Tensor]]:
    """Yield running sums s_i = terms_i + carry_i s_(i-1), chunk by chunk; nothing is subtracted.

    Args:
        terms: returns the terms of a chunk, (features, 16, blocks), which are overwritten.
        carry: (keys,), numbers or booleans: 0 starts a new segment, a number below 1 decays.
        features: the number of sums.
        reverse: whether to go from the last key to the first.

    Yields:
        Each chunk with its sums (features, 16 blocks), in the direction of the scan.
    """
    before = None
    for chunk in chunks(len(carry), features, reverse):
        sums, factor = terms(chunk), chunk.arrange(carry[chunk.rows].double())
        if before is not None:
            sums[:, 0, 0] += factor[0, 0] * before
        scan_blocks(sums, factor)
        before = chunk.last(sums)
        yield chunk, sums.flatten(1)


def chunks(keys: int, features: int, reverse: bool) -> list[Chunk]:
    """Return the chunks of a line of that many keys, in the direction of the scan."""
    size = max(CHUNK // features // BLOCK, BLOCK) * BLOCK
    found = [Chunk(start, min(start + size, keys), reverse) for start in range(0, keys, size)]
    return found[::-1] if reverse else found


def rows_by_chunk(position: Tensor, keys: int, features: int, reverse: bool, back: int = 0) -> Iterator[slice]:
    """Yield, for each chunk, the range of sorted positions (queries,) less `back` in it; others are at the ends."""
    parts = chunks(keys, features, reverse)
    starts = torch.tensor([part.start + back for part in parts], device=position.device, dtype=position.dtype)
    bounds = dict(zip((part.start for part in parts), torch.searchsorted(position, starts).tolist(), strict=True))
    bounds[0] = 0
    for part in parts:
        yield slice(bounds[part.start], bounds.get(part.stop, len(position)))


def scan_blocks(terms: Tensor, carry: Tensor) -> None:
    """Turn terms (features, 16, blocks) into running sums in place: down each block, then from block to block.

    The last sums of the blocks are scanned in the same way, so additions are 16 deep for each power of 16, which keeps
    their rounding small. carry: (16, blocks).
    """
    rows = terms.unbind(1)
    for before, row, factor in zip(rows, rows[1:], carry.unbind(0)[1:], strict=False):
        row.addcmul_(before, factor)
    blocks = carry.shape[1]
    if blocks == 1:
        return
    through = carry.cumprod(0)
    chunk = Chunk(0, blocks, False)
    ends, factors = chunk.arrange(terms[:, -1]), chunk.arrange(through[-1])
    scan_blocks(ends, factors)
    earlier = ends.mT.flatten(1)[:, : blocks - 1]
    terms[:, :, 1:].addcmul_(through[:, 1:], earlier.unsqueeze(1))


# --- Windows and cells -------------------------------------------------------------------------------------------

# A cell is wider than half a window of one common bandwidth, which then reaches into the next cell at most.
SPARE = 1 + 2**-20
# Queries per block: a few temporaries of 2 MiB.
ROWS = 2**18

Comparison = Callable[[Tensor, Tensor, Width], Tensor]


def comparison(kernel: Kernel, dtype: torch.dtype) -> Comparison:
    """Return the comparison of a compact kernel: whether a key is inside the window of a query.

    Where the edge is inside, |q - k| <= width is decided in the dtype of the data, as the caller would write it.
    """
    if kernel.is_edge_inside:
        return lambda query, key, width: (query.to(dtype) - key.to(dtype)).abs() <= width
    return lambda query, key, width: (query - key).square_().div_(width).div_(width) < 1


def window_ends(queries: SortedQueries, data: SortedData, width: Width, inside: Comparison) -> tuple[Tensor, Tensor]:
    """Return the first key of each window and the key after its last, (queries,) each.

    The rounded sums query - width and query + width are only where the search starts; the comparison decides.
    """
    parts = []
    for start in range(0, max(len(queries.position), 1), ROWS):
        rows = slice(start, start + ROWS)
        position, left, right = queries.position[rows], queries.left[rows], queries.right[rows]
        parts.append(_window_ends(data.key, position, left, right, at_rows(width, rows), inside))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([first for first, _ in parts]), torch.cat([after for _, after in parts])


def _window_ends(
    key: Tensor, query: Tensor, left: Tensor, right: Tensor, width: Width, inside: Comparison
) -> tuple[Tensor, Tensor]:
    keys = key.shape[0]
    first = torch.minimum(torch.searchsorted(key, query - width).to(left.dtype), left)
    after = torch.maximum(torch.searchsorted(key, query + width, right=True).to(right.dtype), right)
    # The keys on either side of both ends: the outer ones must be outside, the inner ones inside, where there are any.
    index = torch.stack([first - 1, first, after - 1, after])
    around = key.index_select(0, index.clamp(0, keys - 1).flatten()).view(4, -1)
    outer_first, inner_first, inner_after, outer_after = inside(query, around, width).unbind(0)
    too_late, too_early = outer_first & (first > 0), ~inner_first & (first < left)
    wrong = (too_late | too_early).nonzero().squeeze(-1)
    if wrong.numel():
        first[wrong] = _first_inside(key, query[wrong], first[wrong], left[wrong], at_rows(width, wrong), inside)
    too_late, too_early = ~inner_after & (after > right), outer_after & (after < keys)
    wrong = (too_late | too_early).nonzero().squeeze(-1)
    if wrong.numel():
        mirrored, width = key.flip(0).neg_(), at_rows(width, wrong)
        moved = _first_inside(mirrored, -query[wrong], keys - after[wrong], keys - right[wrong], width, inside)
        after[wrong] = keys - moved
    return first, after


def _first_inside(key: Tensor, query: Tensor, first: Tensor, end: Tensor, width: Width, inside: Comparison) -> Tensor:
    """Return the first key inside among those before `end`, or `end`; `first` is off by roundings.

    One step over the keys of equal value nearly always suffices; where keys are finer than the rounding, bisect.
    """
    last = key.shape[0] - 1
    before, here = key[(first - 1).clamp(min=0)], key[first.clamp(max=last)]
    too_late = inside(query, before, width) & (first > 0)
    moved = torch.where(too_late, torch.searchsorted(key, before), torch.searchsorted(key, here, right=True))
    moved = torch.minimum(moved.to(end.dtype), end)
    outer = inside(query, key[(moved - 1).clamp(min=0)], width)
    inner = inside(query, key[moved.clamp(max=last)], width)
    wrong = ((outer & (moved > 0)) | (~inner & (moved < end))).nonzero().squeeze(-1)
    if wrong.numel():
        low, high, query, width = torch.zeros_like(end[wrong]), end[wrong], query[wrong], at_rows(width, wrong)
        for _ in range(key.shape[0].bit_length()):
            middle = (low + high) >> 1
            is_open = low < high
            found = inside(query, key[middle.clamp(max=last)], width)
            low, high = torch.where(is_open & ~found, middle + 1, low), torch.where(is_open & found, middle, high)
        moved[wrong] = high
    return moved


class Cells(NamedTuple):
    """The cell of each key.

    Attributes:
        rank: (keys,), the number of the cell among those that hold keys, from 1.
        centre: (keys,), the centre of the cell.
        same: (keys,), whether the key before is in the same cell.
    """

    rank: Tensor
    centre: Tensor
    same: Tensor

    @classmethod
    def of(cls, key: Tensor, size: float) -> "Cells":
        """Cut the line into cells.

        Cells are counted from the first key after each gap of more than two cells, so neither an offset of the data
        nor a range of a great many cells costs digits or memory.
        """
        starts = torch.ones_like(key, dtype=torch.bool)
        torch.gt(key[1:] - key[:-1], 2 * size, out=starts[1:])
        anchor = key[torch.arange(key.shape[0], device=key.device).mul_(starts).cummax(0).values]
        number = (key - anchor).div_(size).floor_()
        starts[1:] |= number[1:] != number[:-1]
        centre = anchor.add_(number.add_(0.5).mul_(size))
        return cls(starts.cumsum(0, dtype=torch.int32), centre, starts.logical_not_())


class HalfWindow(NamedTuple):
    """How running sums of cells make up half a window, the keys from `first` to before `after`; (queries,) each.

    Attributes:
        suffix: whether the sum from `first` to the end of its cell is a part.
        prefix: whether the sum from the start of a cell to the last key is a part.
        needs_exact: whether running sums do not make it up, so that it is summed pair by pair.
    """

    suffix: Tensor
    prefix: Tensor
    needs_exact: Tensor


def half_windows(cells: Cells, first: Tensor, after: Tensor) -> HalfWindow:
    """Decide by positions alone, so that no rounding can lose a key or count it twice."""
    parts = [_half_windows(cells.rank, *some) for some in zip(first.split(ROWS), after.split(ROWS), strict=True)]
    return parts[0] if len(parts) == 1 else HalfWindow(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def _half_windows(rank: Tensor, first: Tensor, after: Tensor) -> HalfWindow:
    end = rank.shape[0] - 1
    # The cells of first - 1, first, the last key and after, in one gather; a position off the line has cell -1.
    position = torch.stack([first - 1, first, after - 1, after])
    off = (position < 0) | (position > end)
    found = rank.index_select(0, position.clamp_(0, end).flatten()).view_as(off)
    before, head, tail, behind = found.masked_fill_(off, -1).unbind(0)
    some = first < after
    # Two cells apart, the whole cell between is a part too: see `whole_cells`.
    several = some & (head < tail) & (tail <= head + 2)
    same = some & (head == tail)
    starts = before != head
    prefix = several | (same & starts)
    suffix = several | (same & ~starts & (behind != tail))
    return HalfWindow(suffix, prefix, some & ~prefix & ~suffix)


def whole_cells(cells: Cells, first: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Return which half windows contain a whole cell between their first and their last, and the last key of it."""
    last = cells.rank.shape[0] - 1
    head, tail = (cells.rank[position.clamp(0, last).long()] for position in (first, after - 1))
    rows = ((first < after) & (tail == head + 2)).nonzero().squeeze(-1)
    start = cells.same.logical_not().nonzero().squeeze(-1)
    return rows, start[tail[rows].long() - 1] - 1


# --- Compact kernels ---------------------------------------------------------------------------------------------

# Roundings of eps that a running sum and its factors gather: at a million keys one or two were seen.
ROUNDINGS = 4
# Degree and accuracy of the polynomial that stands for a kernel that is none.
MAX_DEGREE, INTERPOLATION_ERROR = 24, 1e-15


class Squared(Kernel):
    """The square of a compact kernel."""

    is_compact = True

    def __init__(self, kernel: Kernel) -> None:
        """Square the polynomial too, if there is one."""
        self.kernel = kernel
        self.name = f"{kernel.name} squared"
        self.is_edge_inside, self.is_differentiable = kernel.is_edge_inside, kernel.is_differentiable
        self.polynomial = None if kernel.polynomial is None else _square(kernel.polynomial)

    def log_of_ratio(self, z: Tensor) -> Tensor:
        """Return 2 log g(z)."""
        return 2 * self.kernel.log_of_ratio(z)

    def slope(self, z: Tensor) -> Tensor:
        """Return 2 d log g / dz."""
        return 2 * self.kernel.slope(z)


def _square(polynomial: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(np.convolve(polynomial, polynomial).tolist())


@functools.cache
def squared(kernel: Kernel) -> Squared:
    """Return the square of a compact kernel, the same object each time."""
    return Squared(kernel)


def polynomial(kernel: Kernel) -> tuple[float, ...]:
    """Return the coefficients of f in powers of d on [0, 1]; the cosine is one of degree 13 to 1e-15."""
    if kernel.polynomial is not None:
        return tuple(map(float, kernel.polynomial))
    return _interpolated(kernel)


@functools.cache
def _interpolated(kernel: Kernel) -> tuple[float, ...]:
    def values(d: np.ndarray) -> np.ndarray:
        return kernel.log_of_ratio(torch.tensor(np.square((d + 1) / 2), device="cpu")).exp().numpy()

    chebyshev = np.polynomial.Chebyshev.interpolate(values, MAX_DEGREE).trim(INTERPOLATION_ERROR)
    mapped = np.polynomial.Chebyshev(chebyshev.coef, domain=[0, 1])
    return tuple(map(float, mapped.convert(kind=np.polynomial.Polynomial, domain=[-1, 1]).coef.real))


@functools.cache
def _query_matrices(coefficients: tuple[float, ...], powers: int) -> np.ndarray:
    """Return what turns powers of s into factors of the running sums: (2 sides, powers, terms, terms).

    With s and t the positions of query and key in the cell, the distance is d = s - t on the left of a query and t - s
    on the right. So f(d) u^r, with u = t - s, is the sum over n of (-1)^r sign^n c_n (s - t)^(n + r), and the running
    sum of t^p has in it the factor (-1)^p binomial(n + r, p) s^(n + r - p).
    """
    terms = len(coefficients) + powers - 1
    matrix = np.zeros((2, powers, terms, terms))
    for side, sign in enumerate((1, -1)):
        for r in range(powers):
            for n, coefficient in enumerate(coefficients):
                for p in range(n + r + 1):
                    factor = math.comb(n + r, p) * (-1) ** (p + r) * sign**n
                    matrix[side, r, p, n + r - p] += coefficient * factor
    return matrix


class CompactSums:
    """The `LineMethod` of compact kernels.

    Error: with s and t in bandwidths, a sum is off by a few eps of sum_n |c_n| (|s| + |t|)^n times the weight of its
    keys. Rows where that may exceed the tolerance, as a share of their mass, are summed pair by pair.
    """

    def __init__(
        self, kernel: Kernel, width: Width, queries: SortedQueries, data: SortedData, tolerance: float
    ) -> None:
        """Find the windows of all queries."""
        self.kernel, self.width, self.queries, self.data = kernel, width, queries, data
        self.limit = tolerance / (ROUNDINGS * torch.finfo(torch.float64).eps)
        self.coefficients = polynomial(kernel)
        self.first, self.after = window_ends(queries, data, width, comparison(kernel, data.dtype))

    def accumulate(self, sums: KernelSums) -> KeyRanges | None:
        """Add all keys to the sums; return the rows whose error bound exceeds the tolerance, None if there are none."""
        if isinstance(self.width, Tensor):
            bound, needs_exact = self._accumulate_by_width(sums)
        else:
            part = _Windows(self.queries, self.data, self.first, self.after, self.width, self.width, SPARE)
            bound, needs_exact = part.accumulate(sums.sums, self.coefficients)
        sums.add_remaining_copies(self.queries, self.data)
        if self.queries.remaining_weight is not None:
            bound.add_(self.queries.remaining_weight)
        rows = needs_exact.logical_or_(bound > sums.sums[0] * self.limit).nonzero().squeeze(-1)
        if not rows.numel():
            return None
        return KeyRanges(rows, self.first[rows], self.after[rows], torch.zeros_like(self.queries.position[rows]))

    def log_kernel(self, key: Tensor, query: Tensor, reference: Tensor, width: Width) -> Tensor:
        """Return log f; a flat kernel is 1 at every key of its window."""
        del reference
        if not self.kernel.is_differentiable:
            return torch.zeros_like(key)
        return self.kernel.log_of_ratio((key - query).square_() / width / width)

    def _accumulate_by_width(self, sums: KernelSums) -> tuple[Tensor, Tensor]:
        """Do the same where widths change: for each power of two, the queries whose widths are up to twice as large.

        Cells have the size of that power, so half a window ends in one of the two cells after the one it starts in.
        """
        assert isinstance(self.width, Tensor)
        bound, needs_exact = torch.zeros_like(self.width), torch.zeros_like(self.width, dtype=torch.bool)
        exponent = self.width.log2().floor()
        features = (len(self.coefficients) + (0 if len(sums.sums) == self.data.channels else 2)) * self.data.channels
        for power in exponent.unique().tolist():
            rows = (exponent == power).nonzero().squeeze(-1)
            first, after = self.first[rows], self.after[rows]
            low, high = int(first.min()), int(after.max())
            # Few pairs take less time exactly than a scan of all keys in reach.
            if int((after - first).sum()) <= features * (high - low):
                needs_exact[rows] = True
                continue
            data = self.data.between(low, high)
            queries = self.queries.take(rows)
            queries = queries._replace(left=queries.left - low, right=queries.right - low)
            part = _Windows(queries, data, first - low, after - low, self.width[rows], 2.0**power, 1.0)
            found = sums.sums.new_zeros(len(sums.sums), len(rows))
            bound[rows], needs_exact[rows] = part.accumulate(found, self.coefficients)
            sums.sums[:, rows] = found
        return bound, needs_exact


class _Reads(NamedTuple):
    """Where half windows read running sums: at the keys `position` - `back`, in increasing order, where `used`.

    rows: the query of each read, None where that is its index. side: 0 on the left of the queries, 1 on the right.
    """

    position: Tensor
    back: int
    used: Tensor
    rows: Tensor | None
    side: int

    @classmethod
    def of(cls, position: Tensor, back: int, used: Tensor, side: int) -> "_Reads":
        """Sort the reads, if they are not: the ends of windows of changing width need not increase."""
        if bool((position[1:] >= position[:-1]).all()):
            return cls(position, back, used, None, side)
        position, rows = position.sort()
        return cls(position, back, used[rows], rows, side)


class _Windows(NamedTuple):
    """Windows with the cells they are made of: keys `first` to before `after` of each query.

    unit: positions of keys in their cell are measured in it; a cell has `spare` units.
    """

    queries: SortedQueries
    data: SortedData
    first: Tensor
    after: Tensor
    width: Width
    unit: float
    spare: float

    def accumulate(self, sums: Tensor, coefficients: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Add both halves of every window to sums (count, queries).

        Returns:
            What the rounding error of each row is a few eps of, and which rows the cells do not make up.
        """
        cells = Cells.of(self.data.key, self.unit * self.spare)
        left = half_windows(cells, self.first, self.queries.left)
        right = half_windows(cells, self.queries.right, self.after)
        bound = torch.zeros_like(self.queries.position)
        reads = [_Reads.of(self.queries.left, 1, left.prefix, 0), _Reads.of(self.after, 1, right.prefix, 1)]
        if isinstance(self.width, Tensor):
            for side, ends in enumerate(((self.first, self.queries.left), (self.queries.right, self.after))):
                rows, last = whole_cells(cells, *ends)
                position, order = last.sort()
                reads.append(_Reads(position, 0, torch.ones_like(rows, dtype=torch.bool), rows[order], side))
        self._scan(sums, bound, cells, reads, coefficients, reverse=False)
        reads = [_Reads.of(self.first, 0, left.suffix, 0), _Reads.of(self.queries.right, 0, right.suffix, 1)]
        self._scan(sums, bound, cells, reads, coefficients, reverse=True)
        return bound, left.needs_exact | right.needs_exact

    def _scan(
        self,
        sums: Tensor,
        bound: Tensor,
        cells: Cells,
        reads: list[_Reads],
        coefficients: tuple[float, ...],
        *,
        reverse: bool,
    ) -> None:
        """Run the sums along the line in one direction, and add what each half window reads."""
        data, keys, channels = self.data, self.data.key.shape[0], self.data.channels
        powers = 1 if len(sums) == channels else 3
        matrices = torch.tensor(_query_matrices(coefficients, powers), device=sums.device)
        terms = matrices.shape[-1]

        def key_terms(chunk: Chunk) -> Tensor:
            t = chunk.arrange((data.key[chunk.rows] - cells.centre[chunk.rows]).div_(self.unit))
            return _times_powers(t, chunk.arrange(data.weighted(chunk.rows)), terms).flatten(0, 1)

        features = terms * channels
        ranges = [rows_by_chunk(read.position, keys, features, reverse, read.back) for read in reads]
        same = cells.same.roll(-1) if reverse else cells.same
        for chunk, running in segmented_scan(key_terms, same, features, reverse=reverse):
            for read, part in zip(reads, [next(each) for each in ranges], strict=True):
                if part.start == part.stop:
                    continue
                rows = part if read.rows is None else read.rows[part]
                position = read.position[part].long().sub_(read.back).clamp_(0, keys - 1)
                used, width = read.used[part].double(), at_rows(self.width, rows)
                s = (self.queries.position[rows] - cells.centre.index_select(0, position)).mul_(used).div_(width)
                found = running.gather(1, chunk.find(position).expand(features, -1)).unflatten(0, (terms, channels))
                ratio = self.unit / width
                bound[rows] += _absolute(coefficients, s.abs().add_(ratio * self.spare / 2)).mul_(found[0, 0] * used)
                factors = matrices[read.side] @ _times_powers(s, used.unsqueeze(0), terms).squeeze(1)
                if isinstance(ratio, Tensor):
                    factors *= _times_powers(ratio, torch.ones_like(ratio).unsqueeze(0), terms).squeeze(1)
                sums[:, rows] += _contract(factors, found)


def _times_powers(x: Tensor, channels: Tensor, terms: int) -> Tensor:
    """Return channels (channels, ...) times x^0, x^1, ...: (terms, channels, ...)."""
    result = channels.new_empty(terms, *channels.shape)
    result[0] = channels
    for last, power in itertools.pairwise(result.unbind(0)):
        torch.mul(last, x, out=power)
    return result


def _absolute(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return the sum of |c_n| x^n. (1 + x^3)^3 is summed as a polynomial in x^3."""
    stride = math.gcd(*(degree for degree, coefficient in enumerate(coefficients) if coefficient)) or 1
    step, result = x**stride, torch.zeros_like(x)
    for coefficient in reversed(coefficients[::stride]):
        result.mul_(step).add_(abs(coefficient))
    return result


def _contract(factors: Tensor, found: Tensor) -> Tensor:
    """Sum over the terms: factors (powers, terms, rows), running sums (terms, channels, rows) -> (count, rows)."""
    channels, powers = found.shape[1], len(factors)
    result = found.new_zeros(channels if powers == 1 else 2 * channels + 1, found.shape[2])
    for sums, factor in zip(found.unbind(0), factors.unbind(1), strict=True):
        result[:channels].addcmul_(sums, factor[0])
        if powers > 1:
            result[channels:-1].addcmul_(sums, factor[1])
            result[-1].addcmul_(sums[0], factor[2])
    return result


# --- Laplacian ---------------------------------------------------------------------------------------------------


class LaplacianSums:
    """The `LineMethod` of the Laplacian exp(-|q - k| / width), exact up to rounding.

    A query reads the running sums at the keys beside it and scales them by its distance to the nearer one, so that
    nothing underflows far away; where it leaves out itself, it reads at the keys on either side of its own.
    """

    def __init__(
        self, kernel: Kernel, width: Width, queries: SortedQueries, data: SortedData, tolerance: float
    ) -> None:
        """Find the nearest key of each query."""
        del kernel, tolerance
        assert isinstance(width, float)
        self.width, self.queries, self.data = width, queries, data
        self.distance = queries.nearest_key(data).sub_(queries.position).abs_()
        # A row that leaves out itself and is the only one has no other key.
        self.distance.masked_fill_(self.distance.isinf(), 0.0)

    def accumulate(self, sums: KernelSums) -> None:
        """Add all keys to the sums; every row is exact."""
        sums.log_scale = self.distance / -self.width
        gap = (self.data.key[1:] - self.data.key[:-1]) / self.width
        none = gap.new_zeros(1)
        self._add_side(sums.sums, torch.cat([none, gap]), self.queries.left, 1, is_right=False)
        self._add_side(sums.sums, torch.cat([gap, none]), self.queries.right, 0, is_right=True)
        sums.add_remaining_copies(self.queries, self.data)

    def log_kernel(self, key: Tensor, query: Tensor, reference: Tensor, width: Width) -> Tensor:
        """Return -|q - k| / width."""
        del reference
        return (key - query).abs() / -width

    def _add_side(self, sums: Tensor, gap: Tensor, position: Tensor, back: int, *, is_right: bool) -> None:
        """Add the keys on one side of every query.

        gap: (keys,), in widths, to the key before in the direction of the scan. position: (queries,), less `back` the
        key beside each query, off the line where there is none.
        """
        data, keys, channels = self.data, len(self.data.key), self.data.channels
        powers = 1 if len(sums) == channels else 3
        ranges = rows_by_chunk(position, keys, channels * powers, is_right, back)
        for (chunk, running), rows in zip(self._scan(gap, powers, is_right), ranges, strict=True):
            beside = position[rows].long().sub_(back)
            exists = (beside >= 0) & (beside < keys)
            beside = beside.clamp(0, keys - 1)
            away = (self.queries.position[rows] - data.key[beside]).abs_()
            scale = ((self.distance[rows] - away) / self.width).masked_fill_(~exists, -torch.inf).exp_()
            found = running.gather(1, chunk.find(beside).expand(len(running), -1)).mul_(scale)
            found = found.unflatten(0, (powers, channels))
            sums[:channels, rows] += found[0]
            if powers > 1:
                # A key at distance v from the key beside the query is at v + away from the query.
                away = away.div_(self.width).mul_(exists)
                sign = 1 if is_right else -1
                sums[channels : 2 * channels, rows] += (found[1] + away * found[0]) * sign
                sums[-1, rows] += found[2, 0] + away * (2 * found[1, 0] + away * found[0, 0])

    def _scan(self, gap: Tensor, powers: int, reverse: bool) -> Iterator[tuple[Chunk, Tensor]]:
        """Yield each chunk with its sums of w exp(-v) v^power, times 1 and y, about each key; (powers channels, keys).

        A step over a gap g turns v into v + g, so the sum of v^2 exp(-v) needs the sums of v exp(-v) and of exp(-v) at
        the key before, which are computed first.
        """
        data = self.data
        before = [data.key.new_zeros(data.channels) for _ in range(powers)]
        for chunk in chunks(len(data.key), data.channels * powers, reverse):
            step = chunk.arrange(gap[chunk.rows])
            factor = (-step).exp_()
            sums = [chunk.arrange(data.weighted(chunk.rows))]
            if powers > 1:
                sums += [torch.zeros_like(sums[0]), torch.zeros_like(sums[0])]
            for power, terms in enumerate(sums):
                for lower in range(power):
                    weight = factor * step ** (power - lower) * (2 if (power, lower) == (2, 1) else 1)
                    terms.addcmul_(_shifted(sums[lower], before[lower]), weight)
                terms[:, 0, 0].addcmul_(before[power], factor[0, 0])
                scan_blocks(terms, factor)
            before = [chunk.last(terms) for terms in sums]
            yield chunk, torch.cat(sums).flatten(1)


def _shifted(sums: Tensor, before: Tensor) -> Tensor:
    """Return the running sums (channels, 16, blocks) of the key before each; `before` those before the first."""
    moved = torch.empty_like(sums)
    moved[:, 1:] = sums[:, :-1]
    moved[:, 0, 1:] = sums[:, -1, :-1]
    moved[:, 0, 0] = before
    return moved
