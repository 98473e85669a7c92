"""Gaussian sums by cells of at most one width: moments of the keys, a polynomial for each cell of queries, its values.

The keys of a cell become 18 Chebyshev moments; each cell that holds queries collects the moments of all cells in reach
as one polynomial of its own; each query evaluates that of its cell.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.chebyshev import TERMS, errors, interactions, polynomials
from regard.regression.sums.line import KernelSums, SortedData, SortedQueries

# Cells of keys whose moments exist at once, numbers of moments gathered at once, queries and keys handled at once.
CELLS, GATHERED, ROWS, KEYS = 2**13, 2**20, 2**15, 2**13


class CellGrid(NamedTuple):
    """Cells [number cell, (number + 1) cell).

    cell: a power of two, so that cells and the distances between them are exact numbers, whatever the offset of the
    data. width: of the kernel. reach: how many cells away keys are counted.
    """

    cell: float
    width: float
    reach: int

    @classmethod
    def of(cls, width: float, radius: float) -> "CellGrid":
        """Cells for a kernel of that width, of which keys within radius widths are counted."""
        cell = 2.0 ** math.floor(math.log2(width))
        return cls(cell, width, math.ceil(radius * width / cell))

    @property
    def radius(self) -> float:
        """Keys beyond it are not counted."""
        return self.reach * self.cell

    def can_hold(self, line: SortedData) -> bool:
        """Whether numbers of cells, and places in a cell, are exact for these keys."""
        return max(float(line.key[0].abs()), float(line.key[-1].abs())) < 2.0**50 * self.cell

    def number(self, place: Tensor) -> Tensor:
        """The number of the cell, as a float."""
        return (place / self.cell).floor_()

    def inside(self, place: Tensor, number: Tensor) -> Tensor:
        """The place in its cell, from -1 to 1."""
        return (place - (number + 0.5) * self.cell).mul_(2 / self.cell)


class _Held(NamedTuple):
    """Cells that hold keys: number (cells,) int64, start (cells + 1,), the first key of each and of what follows."""

    number: Tensor
    start: Tensor


def fill(totals: KernelSums, asked: SortedQueries, line: SortedData, grid: CellGrid, allowed: float) -> Tensor:
    """Fill the totals; returns the rows whose error may exceed what is allowed of their mass, (queries,)."""
    number = grid.number(line.key)
    begins = torch.ones_like(number, dtype=torch.bool)
    torch.ne(number[1:], number[:-1], out=begins[1:])
    first = begins.nonzero().squeeze(-1)
    held = _Held(number[first].long(), torch.cat([first, first.new_full((1,), line.key.shape[0])]))
    del number, begins
    wanted, of_query = _cells_of_queries(asked, held, grid)
    unsure = torch.ones_like(asked.place, dtype=torch.bool)
    expansion = _Expansion.of(totals, line, grid)
    for low, high in _slabs(wanted, held):
        ends = torch.stack([wanted[low] - grid.reach, wanted[high - 1] + grid.reach + 1])
        near, far = torch.searchsorted(held.number, ends).tolist()
        if near == far:
            continue
        moments = _moments(line, held, near, far, grid)
        step = max(GATHERED // expansion.bound.shape[0] // TERMS, 1)
        for start in range(low, high, step):
            cells = wanted[start : min(start + step, high)]
            fields, slack = expansion.collect(cells, held.number[near:far], moments)
            bounds = torch.tensor([start, start + cells.shape[0]], device=cells.device)
            begin, end = torch.searchsorted(of_query, bounds).tolist()
            for row in range(begin, end, ROWS):
                rows = slice(row, min(row + ROWS, end))
                mine = of_query[rows] - start
                basis = polynomials(grid.inside(asked.place[rows], cells[mine].double()))
                for count, field in enumerate(fields):
                    totals.sums[count, rows] = field.gather(1, mine.expand(TERMS, -1)).mul_(basis).sum(0)
                unsure[rows] = _unsure(totals.sums[:, rows], slack[mine], asked, line, rows, allowed)
    return unsure


def _unsure(sums: Tensor, slack: Tensor, asked: SortedQueries, line: SortedData, rows: slice, allowed: float) -> Tensor:
    """Take out the rows themselves where they are left out; which rows are then not sure."""
    if not asked.leaves_itself:
        return ~(slack <= allowed * sums[0])
    gone = torch.ones_like(slack) if line.weight is None else line.weight[rows].clamp(max=1)
    sums[0] -= gone
    sums[1 : line.channels] -= gone * line.value[:, rows]
    # A row that held more than half of the mass would lose digits by the subtraction.
    return ~((slack <= allowed * sums[0]) & (gone <= sums[0]))


def _cells_of_queries(asked: SortedQueries, held: _Held, grid: CellGrid) -> tuple[Tensor, Tensor]:
    """The cells that hold queries, and for each query which of them; beyond the reach of all keys they are one cell."""
    lowest, highest = int(held.number[0]) - grid.reach - 2, int(held.number[-1]) + grid.reach + 2
    number = grid.number(asked.place).clamp_(lowest, highest).long()
    return torch.unique_consecutive(number, return_inverse=True)


def _slabs(wanted: Tensor, held: _Held) -> list[tuple[int, int]]:
    """Ranges of the wanted cells that need the moments of some thousand cells only."""
    slab = torch.searchsorted(held.number, wanted).div_(CELLS, rounding_mode="floor")
    counts = torch.unique_consecutive(slab, return_counts=True)[1]
    ends = counts.cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _moments(line: SortedData, held: _Held, near: int, far: int, grid: CellGrid) -> Tensor:
    """sum_j w_j T_p(place of j in its cell), times 1 and y, of the cells near to far: (channels, cells + 1, 18).

    One more cell at the end is empty. Each block of keys is summed by itself first, which keeps the rounding small.
    """
    starts = held.start[near : far + 1]
    begin, end = int(starts[0]), int(starts[-1])
    result = line.key.new_zeros(far - near + 1, line.channels * TERMS)
    for start in range(begin, end, KEYS):
        rows = slice(start, min(start + KEYS, end))
        key = line.key[rows]
        basis = polynomials(grid.inside(key, grid.number(key))).T.contiguous()
        features = (line.weighted(rows).T.unsqueeze(2) * basis.unsqueeze(1)).flatten(1)
        cell = torch.searchsorted(starts, torch.arange(rows.start, rows.stop, device=key.device), right=True).sub_(1)
        low, high = int(cell[0]), int(cell[-1]) + 1
        block = features.new_zeros(high - low, features.shape[1])
        result[low:high] += block.index_add_(0, cell.sub_(low), features)
    return result.unflatten(1, (line.channels, TERMS)).transpose(0, 1).contiguous()


class _Expansion(NamedTuple):
    """How moments become polynomials.

    matrices: for each power of (key - query) / width, (offsets 18, 18). bound: (offsets,), the error for a unit of
    weight. beyond: what all keys out of reach hold at most. offsets: (offsets,), from a query's cell to the keys'.
    """

    matrices: list[Tensor]
    bound: Tensor
    beyond: float
    offsets: Tensor
    channels: int

    @classmethod
    def of(cls, totals: KernelSums, line: SortedData, grid: CellGrid) -> "_Expansion":
        powers = 1 if totals.sums.shape[0] == line.channels else 3
        cell = grid.cell / grid.width
        matrices = [interactions(cell, grid.reach, power, line.key).flatten(0, 1) for power in range(powers)]
        beyond = line.total_weight * math.exp(-0.5 * (grid.radius / grid.width) ** 2)
        offsets = torch.arange(grid.reach, -grid.reach - 1, -1, device=line.key.device)
        return cls(matrices, errors(cell, grid.reach, line.key), beyond, offsets, line.channels)

    def collect(self, cells: Tensor, held: Tensor, moments: Tensor) -> tuple[list[Tensor], Tensor]:
        """The polynomials of these cells (18, cells), one for each sum of Totals, and their error (cells,)."""
        target = cells.unsqueeze(-1) + self.offsets
        index = torch.searchsorted(held, target).clamp_(max=held.shape[0] - 1)
        index.masked_fill_(held[index] != target, held.shape[0])
        # Rows by index_select: several times faster than the same by indexing.
        rows, shape = index.flatten(), (len(cells), -1)
        gathered = [channel.index_select(0, rows).view(shape) for channel in moments.unbind(0)]
        slack = moments[0, :, 0][index] @ self.bound + self.beyond
        fields = [part @ self.matrices[0] for part in gathered]
        if len(self.matrices) > 1:
            fields += [part @ self.matrices[1] for part in gathered] + [gathered[0] @ self.matrices[2]]
        return [field.T.contiguous() for field in fields], slack
