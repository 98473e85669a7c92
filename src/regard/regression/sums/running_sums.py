"""Kernel sums that a recurrence carries along the line: compact kernels and the Laplacian."""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

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
from regard.scores.kernels import KERNELS

BLOCK_BITS = 4
BLOCK = 2**BLOCK_BITS
# Numbers in a chunk of terms: 4 MiB, so that the passes over it stay in cache.
CHUNK = 2**19


class Chunk:
    """The keys start to stop of the line, in the layout of the running sums; from the right where backward."""

    def __init__(self, start: int, stop: int, backward: bool) -> None:
        """Name the range and the direction."""
        self.start, self.stop, self.backward = start, stop, backward
        self.blocks = -(-(stop - start) // BLOCK)

    @property
    def rows(self) -> slice:
        """The keys of this chunk."""
        return slice(self.start, self.stop)

    def arrange(self, numbers: Tensor) -> Tensor:
        """(..., stop - start) -> (..., 16, blocks), filled up with zeros."""
        numbers = numbers.flip(-1) if self.backward else numbers
        short = self.blocks * BLOCK - numbers.shape[-1]
        numbers = torch.nn.functional.pad(numbers, (0, short)) if short else numbers
        return numbers.unflatten(-1, (self.blocks, BLOCK)).mT.contiguous()

    def find(self, position: Tensor) -> Tensor:
        """Where the sums at these positions of the line are in the flattened layout."""
        position = position.long()
        local = self.stop - 1 - position if self.backward else position - self.start
        return (local & (BLOCK - 1)).mul_(self.blocks).add_(local >> BLOCK_BITS)

    def last(self, sums: Tensor) -> Tensor:
        """The running sums at the chunk's end, of sums (features, 16, blocks): (features,)."""
        final = self.stop - self.start - 1
        return sums[:, final % BLOCK, final // BLOCK].clone()


def segmented_scan(
    terms: Callable[[Chunk], Tensor], factor: Tensor, features: int, *, backward: bool
) -> Iterator[tuple[Chunk, Tensor]]:
    """Each chunk with its running sums (features, 16 blocks), in the order in which they arise.

    terms: gives those of a chunk, (features, 16, blocks), which are overwritten. factor: (keys,), numbers or
    booleans, of the key before in the direction of the sum.
    """
    carry = None
    for chunk in chunks(len(factor), features, backward):
        sums, decay = terms(chunk), chunk.arrange(factor[chunk.rows].double())
        if carry is not None:
            sums[:, 0, 0] += decay[0, 0] * carry
        scan_blocks(sums, decay)
        carry = chunk.last(sums)
        yield chunk, sums.flatten(1)


def chunks(keys: int, features: int, backward: bool) -> list[Chunk]:
    """The chunks of a line of that many keys, in the order of the direction."""
    size = max(CHUNK // features // BLOCK, BLOCK) * BLOCK
    found = [Chunk(start, min(start + size, keys), backward) for start in range(0, keys, size)]
    return found[::-1] if backward else found


def rows_by_chunk(position: Tensor, keys: int, features: int, backward: bool, back: int = 0) -> Iterator[slice]:
    """The queries whose sorted positions (queries,) minus back are in each chunk; those off the line at its ends."""
    parts = chunks(keys, features, backward)
    starts = torch.tensor([part.start + back for part in parts], device=position.device, dtype=position.dtype)
    bounds = dict(zip((part.start for part in parts), torch.searchsorted(position, starts).tolist(), strict=True))
    bounds[0] = 0
    for part in parts:
        yield slice(bounds[part.start], bounds.get(part.stop, len(position)))


def scan_blocks(terms: Tensor, factor: Tensor) -> None:
    """Turn terms (features, 16, blocks) into running sums down each block and from block to block, in place.

    factor: (16, blocks).
    """
    rows = terms.unbind(1)
    for before, row, passing in zip(rows, rows[1:], factor.unbind(0)[1:], strict=False):
        row.addcmul_(before, passing)
    blocks = factor.shape[1]
    if blocks == 1:
        return
    through = factor.cumprod(0)
    chunk = Chunk(0, blocks, False)
    ends, passing = chunk.arrange(terms[:, -1]), chunk.arrange(through[-1])
    scan_blocks(ends, passing)
    earlier = ends.mT.flatten(1)[:, : blocks - 1]
    terms[:, :, 1:].addcmul_(through[:, 1:], earlier.unsqueeze(1))


# A cell is wider than half a window, which then never reaches beyond the next cell.
SPARE = 1 + 2**-20
# Queries looked at together: a few temporaries of 2 MiB.
ROWS = 2**18


class Cells(NamedTuple):
    """The cell of each key.

    rank: (keys,), its number among the cells that hold keys. centre: (keys,), that of the cell. same: (keys,), whether
    the key before is in the same cell.
    """

    rank: Tensor
    centre: Tensor
    same: Tensor

    @classmethod
    def of(cls, key: Tensor, width: float) -> "Cells":
        """Cells are counted from the first key after each gap wider than a window.

        So neither an offset of the data nor a range of a great many widths costs digits or memory.
        """
        width = width * SPARE
        jump = torch.ones_like(key, dtype=torch.bool)
        torch.gt(key[1:] - key[:-1], 2 * width, out=jump[1:])
        anchor = key[torch.arange(key.shape[0], device=key.device).mul_(jump).cummax(0).values]
        number = (key - anchor).div_(width).floor_()
        jump[1:] |= number[1:] != number[:-1]
        centre = anchor.add_(number.add_(0.5).mul_(width))
        return cls(jump.cumsum(0, dtype=torch.int32), centre, jump.logical_not_())


class HalfWindow(NamedTuple):
    """How the running sums of cells make up half a window, the keys from first up to after; (queries,) each.

    suffix: the sum from first to the end of its cell is a part. prefix: the sum from the start of a cell to the last
    key is a part. broken: they do not make it up, and it is summed pair by pair.
    """

    suffix: Tensor
    prefix: Tensor
    broken: Tensor


def half_windows(cells: Cells, first: Tensor, after: Tensor) -> HalfWindow:
    """Decided by positions alone, so that no rounding can lose a key or count it twice."""
    parts = [_half_windows(cells.rank, *some) for some in zip(first.split(ROWS), after.split(ROWS), strict=True)]
    return parts[0] if len(parts) == 1 else HalfWindow(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def _half_windows(rank: Tensor, first: Tensor, after: Tensor) -> HalfWindow:
    end = rank.shape[0] - 1
    # The cells of first - 1, first, last and after, one gather for all; a place off the line has no cell.
    place = torch.stack([first - 1, first, after - 1, after])
    off = (place < 0) | (place > end)
    found = rank.index_select(0, place.clamp_(0, end).flatten()).view_as(off)
    before, head, tail, behind = found.masked_fill_(off, -1).unbind(0)
    some = first < after
    adjacent = some & (head + 1 == tail)
    same = some & (head == tail)
    starts = before != head
    prefix = adjacent | (same & starts)
    suffix = adjacent | (same & ~starts & (behind != tail))
    return HalfWindow(suffix, prefix, some & ~prefix & ~suffix)


Inside = Callable[[Tensor, Tensor], Tensor]
# Queries looked at together: a few temporaries of 2 MiB.
WINDOW_ROWS = 2**18


def comparison(name: str, width: float, dtype: torch.dtype) -> Inside:
    """Return the comparison of a kernel; where the edge is inside, distances are compared in the dtype of the data."""
    if KERNELS[name].is_edge_inside:
        return lambda place, key: (place.to(dtype) - key.to(dtype)).abs() <= width
    return lambda place, key: (place - key).square_().div_(width).div_(width) < 1


def window_ends(asked: SortedQueries, line: SortedData, width: float, inside: Inside) -> tuple[Tensor, Tensor]:
    """The first key of each window and the first key after it, (queries,) each.

    place - width and place + width are rounded, and are not the comparison itself: they are where the search for it
    starts.
    """
    parts = [
        _ends(line.key, place, left, right, width, inside)
        for place, left, right in zip(
            asked.place.split(WINDOW_ROWS), asked.left.split(WINDOW_ROWS), asked.right.split(WINDOW_ROWS), strict=True
        )
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([first for first, _ in parts]), torch.cat([after for _, after in parts])


def _ends(
    key: Tensor, place: Tensor, left: Tensor, right: Tensor, width: float, inside: Inside
) -> tuple[Tensor, Tensor]:
    keys = key.shape[0]
    first = torch.minimum(torch.searchsorted(key, place - width).to(left.dtype), left)
    after = torch.maximum(torch.searchsorted(key, place + width, right=True).to(right.dtype), right)
    # The keys on either side of both ends: the outer ones must be outside, the inner ones inside, where there are any.
    index = torch.stack([first - 1, first, after - 1, after])
    around = key.index_select(0, index.clamp(0, keys - 1).flatten()).view(4, -1)
    outer_first, inner_first, inner_after, outer_after = inside(place, around).unbind(0)
    too_late, too_early = outer_first & (first > 0), ~inner_first & (first < left)
    wrong = (too_late | too_early).nonzero().squeeze(-1)
    if wrong.numel():
        first[wrong] = _search(key, place[wrong], first[wrong], left[wrong], inside)
    too_late, too_early = ~inner_after & (after > right), outer_after & (after < keys)
    wrong = (too_late | too_early).nonzero().squeeze(-1)
    if wrong.numel():
        mirrored = key.flip(0).neg_()
        moved = _search(mirrored, -place[wrong], keys - after[wrong], keys - right[wrong], inside)
        after[wrong] = keys - moved
    return first, after


def _search(key: Tensor, place: Tensor, first: Tensor, end: Tensor, inside: Inside) -> Tensor:
    """The first key inside among those before end, or end; from a first that is off by roundings.

    Nearly always one step over the keys of equal value is enough; where keys are finer than the rounding, bisection.
    """
    last = key.shape[0] - 1
    before, here = key[(first - 1).clamp(min=0)], key[first.clamp(max=last)]
    too_late = inside(place, before) & (first > 0)
    moved = torch.where(too_late, torch.searchsorted(key, before), torch.searchsorted(key, here, right=True))
    moved = torch.minimum(moved.to(end.dtype), end)
    outer, inner = inside(place, key[(moved - 1).clamp(min=0)]), inside(place, key[moved.clamp(max=last)])
    wrong = ((outer & (moved > 0)) | (~inner & (moved < end))).nonzero().squeeze(-1)
    if wrong.numel():
        low, high, place = torch.zeros_like(end[wrong]), end[wrong], place[wrong]
        for _ in range(key.shape[0].bit_length()):
            middle = (low + high) >> 1
            is_open = low < high
            found = inside(place, key[middle.clamp(max=last)])
            low, high = torch.where(is_open & ~found, middle + 1, low), torch.where(is_open & found, middle, high)
        moved[wrong] = high
    return moved


class Expansion(ABC):
    """One kernel, and the kernel times powers of the distance (the moments of local linear regression)."""

    @abstractmethod
    def terms(self, power: int) -> int:
        """How many products there are where the kernel is wanted up to that power of the distance."""

    @abstractmethod
    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """b_p(t) times each channel: place (...), channels (channels, ...) -> (terms, channels, ...)."""

    @abstractmethod
    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """a_p(s) of the kernel times each power from 0, times a share: (queries,) -> (power + 1, terms, queries)."""

    @abstractmethod
    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Turn what of_queries gave into the factors for b_p(sign t), in place; sign: (queries,), 1 or -1."""

    @abstractmethod
    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """A bound of sum_p |a_p(s)| sum_j w_j |b_p(t_j)|: the rounding error of the sum is a few eps of it.

        reach: (queries,), |s| plus the largest |t|. first: (queries,), the sum of w_j b_0(t_j).
        """


class Polynomial(Expansion):
    """f(v) = sum_d c_d v^d with the coefficients c."""

    def __init__(self, *coefficients: float) -> None:
        """Keep the coefficients, that of v^0 first."""
        self.coefficients = coefficients

    def terms(self, power: int) -> int:
        """1, t, t^2, ..."""
        return len(self.coefficients) + power

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """t^p."""
        result = channels.new_empty(self.terms(power), *channels.shape)
        result[0] = channels
        degrees = result.unbind(0)
        for last, degree in itertools.pairwise(degrees):
            torch.mul(last, place, out=degree)
        return result

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """(s - t)^d multiplied out: t^p has the factor (-1)^p binomial(d, p) s^(d - p)."""
        powers = self.of_keys(place, share.unsqueeze(0), power).squeeze(1)
        return self._multiplied_out(power).to(place.device) @ powers

    @functools.cache  # noqa: B019 - there is one object of each kernel
    @torch.inference_mode(False)  # kept for calls of every mode
    def _multiplied_out(self, power: int) -> Tensor:
        terms = self.terms(power)
        matrix = torch.zeros(power + 1, terms, terms, dtype=torch.float64)
        for more in range(power + 1):
            for degree, coefficient in enumerate(self.coefficients, start=more):
                for p in range(degree + 1):
                    matrix[more, p, degree - p] += coefficient * math.comb(degree, p) * (-1) ** p
        return matrix

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """(-t)^p = (-1)^p t^p."""
        factors[:, 1::2].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """sum_d |c_d| (|s| + |t|)^d for each unit of weight; (1 + |s|^3)^3 is summed as a polynomial in |s|^3."""
        stride = math.gcd(*(degree for degree, coefficient in enumerate(self.coefficients) if coefficient)) or 1
        step, result = reach**stride, torch.zeros_like(reach)
        for coefficient in reversed(self.coefficients[::stride]):
            result.mul_(step).add_(abs(coefficient))
        return result.mul_(first)


class Cosine(Expansion):
    """f(v) = cos(pi v / 2), by cos(a - b) = cos a cos b + sin a sin b."""

    def terms(self, power: int) -> int:
        """cos and sin, each times 1, t, t^2, ..."""
        return 2 * (power + 1)

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """t^p cos(pi t / 2), t^p sin(pi t / 2)."""
        angle = place * (math.pi / 2)
        both = torch.stack([channels * angle.cos(), channels * angle.sin()])
        return torch.cat([both * place**p for p in range(power + 1)]) if power else both

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """(s - t)^r multiplied out, times cos(pi s / 2) and sin(pi s / 2)."""
        angle = place * (math.pi / 2)
        both = torch.stack([angle.cos(), angle.sin()]).mul_(share)
        result = place.new_zeros(power + 1, power + 1, 2, len(place))
        for more in range(power + 1):
            for p in range(more + 1):
                result[more, p] = both * (math.comb(more, p) * (-1) ** p * place ** (more - p))
        return result.flatten(1, 2)

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Cos is even, sin is odd."""
        pairs = factors.unflatten(1, (-1, 2))
        pairs[:, ::2, 1].mul_(sign)
        pairs[:, 1::2, 0].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """2 for each unit of weight; on a cell the cosine is at least 0.7, so that its sum bounds the weight."""
        del reach
        return first * 3


class CosineSquare(Expansion):
    """f(v) = cos(pi v / 2)^2 = (1 + cos(pi v)) / 2, without powers of the distance."""

    def terms(self, power: int) -> int:
        """1, cos and sin."""
        assert power == 0, "nobody asks for moments of a squared kernel"
        return 3

    def of_keys(self, place: Tensor, channels: Tensor, power: int) -> Tensor:
        """1, cos(pi t), sin(pi t)."""
        del power
        angle = place * math.pi
        return torch.stack([channels, channels * angle.cos(), channels * angle.sin()])

    def of_queries(self, place: Tensor, share: Tensor, power: int) -> Tensor:
        """Half of each of 1, cos(pi s), sin(pi s)."""
        del power
        angle = place * math.pi
        return torch.stack([torch.ones_like(angle), angle.cos(), angle.sin()]).mul_(share / 2).unsqueeze(0)

    def mirror(self, factors: Tensor, sign: Tensor) -> None:
        """Cos is even, sin is odd."""
        factors[:, 2].mul_(sign)

    def size(self, reach: Tensor, first: Tensor) -> Tensor:
        """3 / 2 for each unit of weight."""
        del reach
        return first * 1.5


def _square(kernel: Expansion) -> Expansion:
    """The expansion of a kernel's square."""
    if not isinstance(kernel, Polynomial):
        return CosineSquare()
    coefficients = kernel.coefficients
    product = [0.0] * (2 * len(coefficients) - 1)
    for first, one in enumerate(coefficients):
        for second, other in enumerate(coefficients):
            product[first + second] += one * other
    return Polynomial(*product)


EXPANSIONS: dict[str, Expansion] = {
    name: Cosine() if kernel.polynomial is None else Polynomial(*kernel.polynomial)
    for name, kernel in KERNELS.items()
    if kernel.is_compact
}
SQUARES: dict[str, Expansion] = {name: _square(kernel) for name, kernel in EXPANSIONS.items()}


# Roundings of eps that a running sum and its factors gather, generously: at a million keys one or two were seen.
ROUNDINGS = 4


def pool_compact(
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
        first, after = window_ends(asked, line, width, comparison(name, width, dtype))
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
    left, right = half_windows(cells, first, asked.left), half_windows(cells, asked.right, after)
    size = torch.zeros_like(asked.place)
    forward = _Sweep(asked.left, left.prefix, after, right.prefix, 1, False)
    _add_sweep(totals, size, forward, asked, line, cells, expansion, width)
    backward = _Sweep(first, left.suffix, asked.right, right.suffix, 0, True)
    _add_sweep(totals, size, backward, asked, line, cells, expansion, width)
    return size, _broken(left, right)


def _broken(left: HalfWindow, right: HalfWindow) -> Tensor:
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
    sums_by_chunk = segmented_scan(terms, same, features, backward=sweep.backward)
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


def pool_laplacian(
    query: Tensor, line: SortedData, width: float, *, leaves_itself: bool = False, moments: bool = False
) -> Pool:
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
            scan_blocks(terms, factor)
        carry = [chunk.last(terms) for terms in sums]
        yield chunk, torch.cat(sums).flatten(1)


def _one_before(sums: Tensor, carry: Tensor) -> Tensor:
    """The running sums (channels, 16, blocks) of the key before each, with those of the chunk before at the start."""
    moved = torch.empty_like(sums)
    moved[:, 1:] = sums[:, :-1]
    moved[:, 0, 1:] = sums[:, -1, :-1]
    moved[:, 0, 0] = carry
    return moved
