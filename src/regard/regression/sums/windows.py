"""Which keys of a line are inside the window of a compact kernel, decided by the kernel's own comparison."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.regression.sums.line import SortedData, SortedQueries
from regard.scores.kernels import KERNELS

Inside = Callable[[Tensor, Tensor], Tensor]
# Queries looked at together: a few temporaries of 2 MiB.
ROWS = 2**18


def inside_of(name: str, width: float, dtype: torch.dtype) -> Inside:
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
            asked.place.split(ROWS), asked.left.split(ROWS), asked.right.split(ROWS), strict=True
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
