"""Gaussian sums on a line in near-linear time: cells, the far field, and exact pairs for the rest."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.line import KernelSums, KeyRanges, SortedData, SortedQueries, sum_pairs, tolerance_of
from regard.regression.sums.observations import Pool

TERMS = 18
# The error of the expansion as a share of the largest value of the kernel between two cells of at most one width, up to
# a distance between their centres in widths. By measurement with 18 terms: rounding first, truncation further away.
ERRORS = ((5.0, 1e-14), (9.0, 1e-12), (14.0, 1e-8), (math.inf, 1.0))


def polynomials(place: Tensor) -> Tensor:
    """T_0 to T_17 at places in [-1, 1]: (...) -> (18, ...)."""
    result = place.new_empty(TERMS, *place.shape)
    result[0], result[1] = 1.0, place
    twice, degrees = 2 * place, result.unbind(0)
    for before, last, degree in zip(degrees, degrees[1:], degrees[2:], strict=False):
        torch.mul(twice, last, out=degree).sub_(before)
    return result


def nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """The 18 nodes in [-1, 1], and the matrix that takes values there to the coefficients of T_0 to T_17."""
    index = torch.arange(TERMS, dtype=torch.float64, device=like.device)
    angle = (index + 0.5) * (math.pi / TERMS)
    matrix = (index.unsqueeze(-1) * angle).cos() * (2 / TERMS)
    matrix[0] /= 2
    return angle.cos(), matrix


def translation_matrices(cell: float, reach: int, power: int, like: Tensor) -> Tensor:
    """The coefficients of u^power exp(-u^2 / 2), u = key - query in widths.

    Between cells of the size cell, for the query's cell at -reach to reach cells from the key's: (2 reach + 1, 18 of
    the key, 18 of the query).
    """
    node, values_to_coefficients = nodes(like)
    node = node * (cell / 2)
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device) * cell
    u = node.unsqueeze(-1) - node - apart[:, None, None]
    values = u**power * (-0.5 * u.square()).exp()
    return values_to_coefficients @ values @ values_to_coefficients.T


def error_bounds(cell: float, reach: int, like: Tensor) -> Tensor:
    """The error of each interaction for a unit of weight, (2 reach + 1,)."""
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device).abs() * cell
    largest = (-0.5 * (apart - cell).clamp(min=0).square()).exp()
    limit, share = (apart.new_tensor(column) for column in zip(*ERRORS, strict=True))
    return largest * share[torch.searchsorted(limit, apart)]


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


class _OccupiedCells(NamedTuple):
    """Cells that hold keys: number (cells,) int64, start (cells + 1,), the first key of each and of what follows."""

    number: Tensor
    start: Tensor


def accumulate(totals: KernelSums, asked: SortedQueries, line: SortedData, grid: CellGrid, allowed: float) -> Tensor:
    """Fill the totals; returns the rows whose error may exceed what is allowed of their mass, (queries,)."""
    number = grid.number(line.key)
    begins = torch.ones_like(number, dtype=torch.bool)
    torch.ne(number[1:], number[:-1], out=begins[1:])
    first = begins.nonzero().squeeze(-1)
    held = _OccupiedCells(number[first].long(), torch.cat([first, first.new_full((1,), line.key.shape[0])]))
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


def _cells_of_queries(asked: SortedQueries, held: _OccupiedCells, grid: CellGrid) -> tuple[Tensor, Tensor]:
    """The cells that hold queries, and for each query which of them; beyond the reach of all keys they are one cell."""
    lowest, highest = int(held.number[0]) - grid.reach - 2, int(held.number[-1]) + grid.reach + 2
    number = grid.number(asked.place).clamp_(lowest, highest).long()
    return torch.unique_consecutive(number, return_inverse=True)


def _slabs(wanted: Tensor, held: _OccupiedCells) -> list[tuple[int, int]]:
    """Ranges of the wanted cells that need the moments of some thousand cells only."""
    slab = torch.searchsorted(held.number, wanted).div_(CELLS, rounding_mode="floor")
    counts = torch.unique_consecutive(slab, return_counts=True)[1]
    ends = counts.cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _moments(line: SortedData, held: _OccupiedCells, near: int, far: int, grid: CellGrid) -> Tensor:
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
        matrices = [translation_matrices(cell, grid.reach, power, line.key).flatten(0, 1) for power in range(powers)]
        beyond = line.total_weight * math.exp(-0.5 * (grid.radius / grid.width) ** 2)
        offsets = torch.arange(grid.reach, -grid.reach - 1, -1, device=line.key.device)
        return cls(matrices, error_bounds(cell, grid.reach, line.key), beyond, offsets, line.channels)

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


# The first interval starts at two widths; each is 9/7 times the one before; below 36 queries pairs are as cheap.
START, GROWTH, MANY = 2.0, 9 / 7, 36
# In widths; the square is still a number, and the nearest key is all that counts long before.
FARTHEST = 1e150
# More intervals than any distance in float64 reaches.
INTERVALS = 4096
FAR_ROWS = 2**15


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


def accumulate_far(
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
    for some, mine in zip(chosen.split(FAR_ROWS), which.split(FAR_ROWS), strict=True):
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


# Mean keys in reach of a query up to which pairs are cheaper than cells.
FEW = 64
# Distance from the nearest key, in widths, up to which the cells can promise a row.
NEAR = 5
EPS = torch.finfo(torch.float64).eps


def pool_gaussian(
    query: Tensor,
    line: SortedData,
    width: float,
    *,
    leaves_itself: bool = False,
    moments: bool = False,
    tolerance: float | None = None,
) -> Pool:
    """Pool every query (queries, 1) over all keys (eq. 4)."""
    asked = SortedQueries.of(query, line, leaves_itself)
    totals = KernelSums.zero(asked, line, moments)
    if line.key.numel() and asked.place.numel():
        allowed = tolerance_of(tolerance, line.data.key.dtype)
        # The keys whose kernel is below exp(-depth) of the nearest key's hold at most half the tolerance together.
        depth = math.log(2 / allowed) + line.log_weight_spread
        grid = CellGrid.of(width, math.sqrt(2 * depth + NEAR**2))
        unsure = torch.ones_like(asked.place, dtype=torch.bool)
        if grid.can_hold(line) and _keys_in_reach(asked, line, grid.radius) > FEW:
            unsure = accumulate(totals, asked, line, grid, allowed)
        rows = unsure.nonzero().squeeze(-1)
        if rows.numel() and not leaves_itself:
            rows = rows[~accumulate_far(totals, rows, asked, line, width, depth)]
        if rows.numel():
            nearest = asked.nearest_key(line)[rows]
            known = nearest.isfinite()
            _sum_windows(totals, rows[known], nearest[known], asked, line, width, depth)
    return totals.pool(asked, line, width)


def _keys_in_reach(asked: SortedQueries, line: SortedData, radius: float) -> float:
    """The mean number of keys within the radius, by some hundred of the queries."""
    some = asked.place[:: max(asked.place.shape[0] // 256, 1)]
    count = torch.searchsorted(line.key, some + radius) - torch.searchsorted(line.key, some - radius)
    return float(count.double().mean())


def _sum_windows(
    totals: KernelSums,
    rows: Tensor,
    nearest: Tensor,
    asked: SortedQueries,
    line: SortedData,
    width: float,
    depth: float,
) -> None:
    """Rows pair by pair over the keys within sqrt(near^2 + 2 depth width^2), near the distance to the nearest key."""
    place = asked.place[rows]
    near = (place - nearest).abs_() / width
    radius = (near + 2 * depth / (near + (near.square() + 2 * depth).sqrt())) * width
    # Where the radius drowns in the rounding of the places, a few roundings more keep the nearest key inside.
    radius = radius + 4 * EPS * (place.abs() + radius)
    first = torch.searchsorted(line.key, place - radius)
    after = torch.searchsorted(line.key, place + radius, right=True)

    def log_ratio(key: Tensor, place: Tensor, nearest: Tensor) -> Tensor:
        # d^2 - near^2 as (k - n)(k - q + n - q): far away d and near are alike in nearly all digits, and their squares
        # may overflow, but at the nearest key itself this is 0.
        further = (key - nearest) / width
        return torch.where(further == 0, 0.0, -0.5 * further * (((key - place) + (nearest - place)) / width))

    sum_pairs(totals, KeyRanges(rows, first, after, nearest), asked, line, log_ratio, width, -0.5 * near.square())
