"""Cells of a line, a little wider than a kernel, and which running sums of cells make up a window."""

from typing import NamedTuple

import torch
from torch import Tensor

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


class Cover(NamedTuple):
    """How the running sums of cells make up half a window, the keys from first up to after; (queries,) each.

    suffix: the sum from first to the end of its cell is a part. prefix: the sum from the start of a cell to the last
    key is a part. broken: they do not make it up, and it is summed pair by pair.
    """

    suffix: Tensor
    prefix: Tensor
    broken: Tensor


def cover(cells: Cells, first: Tensor, after: Tensor) -> Cover:
    """Decided by positions alone, so that no rounding can lose a key or count it twice."""
    parts = [_cover(cells.rank, *some) for some in zip(first.split(ROWS), after.split(ROWS), strict=True)]
    return parts[0] if len(parts) == 1 else Cover(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def _cover(rank: Tensor, first: Tensor, after: Tensor) -> Cover:
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
    return Cover(suffix, prefix, some & ~prefix & ~suffix)
