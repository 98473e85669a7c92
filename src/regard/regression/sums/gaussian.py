"""Gaussian sums on a line to an error bound, in near-linear time after sorting: a fast Gauss transform.

*Near the keys* (`_near_field`) the line is cut into cells of at most one bandwidth. The keys of a cell become 18
Chebyshev moments, each cell that holds queries collects the moments of all cells in reach as one polynomial of its own,
and each query evaluates the polynomial of its cell.

*Many queries in one gap*, or beyond the last key (`_far_field`): they are interpolated between a few exact sums.

*All other queries* without a promise are summed pair by pair, over the keys that can contribute. Terms are scaled by
that of the nearest key, so they cannot all underflow; far from the data the result is the nearest observation.

References:
    L. Greengard and J. Strain, The fast Gauss transform, SIAM Journal on Scientific and Statistical Computing 12
    (1991), with Chebyshev instead of Hermite expansions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.line import KernelSums, KeyRanges, SortedQueries, Width, sum_pairs
from regard.regression.sums.observations import SortedData
from regard.scores.kernels import Kernel

# Mean keys in reach of a query up to which pairs take less time than cells.
FEW_KEYS = 64
# Distance from the nearest key, in widths, up to which cells can keep the tolerance.
NEAR = 5
EPS = torch.finfo(torch.float64).eps


class GaussianSums:
    """The `LineMethod` of the Gaussian."""

    def __init__(
        self, kernel: Kernel, width: Width, queries: SortedQueries, data: SortedData, tolerance: float
    ) -> None:
        """Choose the cells, and how far away keys count."""
        del kernel
        assert isinstance(width, float)
        self.width, self.queries, self.data, self.tolerance = width, queries, data, tolerance
        # Keys whose kernel is below exp(-log_cutoff) of the nearest key's hold at most half the tolerance together.
        self.log_cutoff = math.log(2 / tolerance) + data.log_weight_ratio
        self.grid = CellGrid.of(width, math.sqrt(2 * self.log_cutoff + NEAR**2))

    def accumulate(self, sums: KernelSums) -> KeyRanges | None:
        """Add all keys to the sums; return the rows that are neither near nor far, or whose bound is exceeded."""
        queries, data = self.queries, self.data
        needs_exact = torch.ones_like(queries.position, dtype=torch.bool)
        if self.grid.can_hold(data) and self._keys_in_reach() > FEW_KEYS:
            needs_exact = accumulate_near(sums, queries, data, self.grid, self.tolerance)
        rows = needs_exact.nonzero().squeeze(-1)
        if rows.numel() and not queries.leave_one_out:
            rows = rows[~accumulate_far(sums, rows, queries, data, self.width, self.log_cutoff)]
        return self._key_ranges(rows) if rows.numel() else None

    def _key_ranges(self, rows: Tensor) -> KeyRanges:
        """Return the keys within sqrt(near^2 + 2 log_cutoff) widths, where the nearest one is `near` widths away."""
        nearest = self.queries.nearest_key(self.data)[rows]
        exists = nearest.isfinite()  # a row that leaves out itself may have no other key
        rows, nearest = rows[exists], nearest[exists]
        position = self.queries.position[rows]
        near = (position - nearest).abs_() / self.width
        radius = near + 2 * self.log_cutoff / (near + (near.square() + 2 * self.log_cutoff).sqrt())
        radius = radius * self.width
        # Where the radius is lost in the rounding of the positions, a few roundings more keep the nearest key inside.
        radius = radius + 4 * EPS * (position.abs() + radius)
        first = torch.searchsorted(self.data.key, position - radius)
        after = torch.searchsorted(self.data.key, position + radius, right=True)
        return KeyRanges(rows, first, after, nearest, -0.5 * near.square())

    def log_kernel(self, key: Tensor, query: Tensor, reference: Tensor, width: Width) -> Tensor:
        """Return log f(key) / f(reference), with the nearest key as reference.

        d^2 - near^2 is computed as (k - n)(k - q + n - q): far away d and near agree in nearly all digits, and their
        squares may overflow, but at the nearest key itself this is 0.
        """
        further = (key - reference) / width
        return torch.where(further == 0, 0.0, -0.5 * further * (((key - query) + (reference - query)) / width))

    def _keys_in_reach(self) -> float:
        """Return the mean number of keys within the radius of the cells, for some hundred of the queries."""
        key, radius = self.data.key, self.grid.radius
        some = self.queries.position[:: max(self.queries.position.shape[0] // 256, 1)]
        count = torch.searchsorted(key, some + radius) - torch.searchsorted(key, some - radius)
        return float(count.double().mean())


# --- Chebyshev expansions ----------------------------------------------------------------------------------------

TERMS = 18
# The error of the expansion as a share of the largest value of the kernel between two cells of at most one width, up to
# a distance between their centres in widths. Measured with 18 terms: rounding first, truncation further away.
ERRORS = ((5.0, 1e-14), (9.0, 1e-12), (14.0, 1e-8), (math.inf, 1.0))


def polynomials(x: Tensor) -> Tensor:
    """Return T_0 to T_17 at x (...) in [-1, 1]: (18, ...)."""
    result = x.new_empty(TERMS, *x.shape)
    result[0], result[1] = 1.0, x
    twice, degrees = 2 * x, result.unbind(0)
    for before, last, degree in zip(degrees, degrees[1:], degrees[2:], strict=False):
        torch.mul(twice, last, out=degree).sub_(before)
    return result


def nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 18 nodes in [-1, 1], and the matrix from values at them to coefficients of T_0 to T_17."""
    index = torch.arange(TERMS, dtype=torch.float64, device=like.device)
    angle = (index + 0.5) * (math.pi / TERMS)
    matrix = (index.unsqueeze(-1) * angle).cos() * (2 / TERMS)
    matrix[0] /= 2
    return angle.cos(), matrix


def translation_matrices(cell: float, reach: int, power: int, like: Tensor) -> Tensor:
    """Return the expansion of u^power exp(-u^2 / 2) between two cells, where u = key - query in widths.

    Args:
        cell: size of a cell in widths.
        reach: the query's cell is at -reach to reach cells from the key's.
        power: the power of u.
        like: a tensor on the device.

    Returns:
        (2 reach + 1, 18 terms of the key, 18 terms of the query).
    """
    node, values_to_coefficients = nodes(like)
    node = node * (cell / 2)
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device) * cell
    u = node.unsqueeze(-1) - node - apart[:, None, None]
    values = u**power * (-0.5 * u.square()).exp()
    return values_to_coefficients @ values @ values_to_coefficients.T


def error_bounds(cell: float, reach: int, like: Tensor) -> Tensor:
    """Return the error of each translation for a unit of weight, (2 reach + 1,)."""
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device).abs() * cell
    largest = (-0.5 * (apart - cell).clamp(min=0).square()).exp()
    limit, share = (apart.new_tensor(column) for column in zip(*ERRORS, strict=True))
    return largest * share[torch.searchsorted(limit, apart)]


# --- Near the keys -----------------------------------------------------------------------------------------------

# Sizes of the blocks: cells of keys whose moments exist at once, numbers of moments gathered at once, queries, keys.
CELLS, GATHERED, ROWS, KEYS = 2**13, 2**20, 2**15, 2**13


class CellGrid(NamedTuple):
    """Cells [number cell, (number + 1) cell).

    Attributes:
        cell: size of a cell, a power of two, so that cells and the distances between them are exact numbers, whatever
            the offset of the data.
        width: the bandwidth.
        reach: how many cells away keys count.
    """

    cell: float
    width: float
    reach: int

    @classmethod
    def of(cls, width: float, radius: float) -> "CellGrid":
        """Return cells for a bandwidth; keys within `radius` bandwidths count."""
        cell = 2.0 ** math.floor(math.log2(width))
        return cls(cell, width, math.ceil(radius * width / cell))

    @property
    def radius(self) -> float:
        """Keys further away than this do not count."""
        return self.reach * self.cell

    def can_hold(self, data: SortedData) -> bool:
        """Whether the numbers of cells, and positions in a cell, are exact for these keys."""
        return max(float(data.key[0].abs()), float(data.key[-1].abs())) < 2.0**50 * self.cell

    def number(self, position: Tensor) -> Tensor:
        """Return the number of the cell, as a float."""
        return (position / self.cell).floor_()

    def inside(self, position: Tensor, number: Tensor) -> Tensor:
        """Return the position in its cell, from -1 to 1."""
        return (position - (number + 0.5) * self.cell).mul_(2 / self.cell)


class OccupiedCells(NamedTuple):
    """The cells that hold keys: number (cells,) int64; start (cells + 1,), the first key of each, then all keys."""

    number: Tensor
    start: Tensor


def accumulate_near(
    sums: KernelSums, queries: SortedQueries, data: SortedData, grid: CellGrid, tolerance: float
) -> Tensor:
    """Add all keys in reach to the sums; return whether the error of each row may exceed the tolerance, (queries,)."""
    number = grid.number(data.key)
    starts = torch.ones_like(number, dtype=torch.bool)
    torch.ne(number[1:], number[:-1], out=starts[1:])
    first = starts.nonzero().squeeze(-1)
    occupied = OccupiedCells(number[first].long(), torch.cat([first, first.new_full((1,), data.key.shape[0])]))
    del number, starts
    targets, target_of = _target_cells(queries, occupied, grid)
    needs_exact = torch.ones_like(queries.position, dtype=torch.bool)
    expansion = _Expansion.of(sums, data, grid)
    for low, high in _slabs(targets, occupied):
        ends = torch.stack([targets[low] - grid.reach, targets[high - 1] + grid.reach + 1])
        near, far = torch.searchsorted(occupied.number, ends).tolist()
        if near == far:
            continue
        moments = _cell_moments(data, occupied, near, far, grid)
        step = max(GATHERED // expansion.bound.shape[0] // TERMS, 1)
        for start in range(low, high, step):
            cells = targets[start : min(start + step, high)]
            fields, error = expansion.collect(cells, occupied.number[near:far], moments)
            bounds = torch.tensor([start, start + cells.shape[0]], device=cells.device)
            begin, end = torch.searchsorted(target_of, bounds).tolist()
            for row in range(begin, end, ROWS):
                rows = slice(row, min(row + ROWS, end))
                field_of = target_of[rows] - start
                basis = polynomials(grid.inside(queries.position[rows], cells[field_of].double()))
                for count, field in enumerate(fields):
                    sums.sums[count, rows] = field.gather(1, field_of.expand(TERMS, -1)).mul_(basis).sum(0)
                needs_exact[rows] = _needs_exact(sums.sums[:, rows], error[field_of], queries, data, rows, tolerance)
    return needs_exact


def _needs_exact(
    sums: Tensor, error: Tensor, queries: SortedQueries, data: SortedData, rows: slice, tolerance: float
) -> Tensor:
    """Subtract the rows themselves where they are left out; return which rows exceed the tolerance."""
    if not queries.leave_one_out:
        return ~(error <= tolerance * sums[0])
    left_out = torch.ones_like(error) if data.weight is None else data.weight[rows].clamp(max=1)
    sums[0] -= left_out
    sums[1 : data.channels] -= left_out * data.value[:, rows]
    # A row that held more than half of the mass would lose digits by the subtraction.
    return ~((error <= tolerance * sums[0]) & (left_out <= sums[0]))


def _target_cells(queries: SortedQueries, occupied: OccupiedCells, grid: CellGrid) -> tuple[Tensor, Tensor]:
    """Return the cells that hold queries, and the index of each query's; beyond the reach of all keys there is one."""
    lowest, highest = int(occupied.number[0]) - grid.reach - 2, int(occupied.number[-1]) + grid.reach + 2
    number = grid.number(queries.position).clamp_(lowest, highest).long()
    return torch.unique_consecutive(number, return_inverse=True)


def _slabs(targets: Tensor, occupied: OccupiedCells) -> list[tuple[int, int]]:
    """Return ranges of target cells that need the moments of some thousand cells only."""
    slab = torch.searchsorted(occupied.number, targets).div_(CELLS, rounding_mode="floor")
    counts = torch.unique_consecutive(slab, return_counts=True)[1]
    ends = counts.cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _cell_moments(data: SortedData, occupied: OccupiedCells, near: int, far: int, grid: CellGrid) -> Tensor:
    """Return sum_j w_j T_p(j in its cell), times 1 and y, of the cells near to far: (channels, cells + 1, 18).

    The last cell is empty. Each block of keys is summed by itself first, which keeps the rounding small.
    """
    starts = occupied.start[near : far + 1]
    begin, end = int(starts[0]), int(starts[-1])
    result = data.key.new_zeros(far - near + 1, data.channels * TERMS)
    for start in range(begin, end, KEYS):
        rows = slice(start, min(start + KEYS, end))
        key = data.key[rows]
        basis = polynomials(grid.inside(key, grid.number(key))).T.contiguous()
        features = (data.weighted(rows).T.unsqueeze(2) * basis.unsqueeze(1)).flatten(1)
        cell = torch.searchsorted(starts, torch.arange(rows.start, rows.stop, device=key.device), right=True).sub_(1)
        low, high = int(cell[0]), int(cell[-1]) + 1
        block = features.new_zeros(high - low, features.shape[1])
        result[low:high] += block.index_add_(0, cell.sub_(low), features)
    return result.unflatten(1, (data.channels, TERMS)).transpose(0, 1).contiguous()


class _Expansion(NamedTuple):
    """How moments become polynomials.

    matrices: for each power of (key - query) / width, (offsets 18, 18). bound: (offsets,), the error for a unit of
    weight. beyond: the most that all keys out of reach hold. offsets: (offsets,), from a query's cell to the keys'.
    """

    matrices: list[Tensor]
    bound: Tensor
    beyond: float
    offsets: Tensor

    @classmethod
    def of(cls, sums: KernelSums, data: SortedData, grid: CellGrid) -> "_Expansion":
        powers = 1 if sums.sums.shape[0] == data.channels else 3
        cell = grid.cell / grid.width
        matrices = [translation_matrices(cell, grid.reach, power, data.key).flatten(0, 1) for power in range(powers)]
        beyond = data.total_weight * math.exp(-0.5 * (grid.radius / grid.width) ** 2)
        offsets = torch.arange(grid.reach, -grid.reach - 1, -1, device=data.key.device)
        return cls(matrices, error_bounds(cell, grid.reach, data.key), beyond, offsets)

    def collect(self, cells: Tensor, occupied: Tensor, moments: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the polynomials of these cells (18, cells), one for each kernel sum, and their error (cells,)."""
        wanted = cells.unsqueeze(-1) + self.offsets
        index = torch.searchsorted(occupied, wanted).clamp_(max=occupied.shape[0] - 1)
        index.masked_fill_(occupied[index] != wanted, occupied.shape[0])
        # Rows by index_select, which takes a fraction of the time of indexing.
        rows, shape = index.flatten(), (len(cells), -1)
        gathered = [channel.index_select(0, rows).view(shape) for channel in moments.unbind(0)]
        error = moments[0, :, 0][index] @ self.bound + self.beyond
        fields = [part @ self.matrices[0] for part in gathered]
        if len(self.matrices) > 1:
            fields += [part @ self.matrices[1] for part in gathered] + [gathered[0] @ self.matrices[2]]
        return [field.T.contiguous() for field in fields], error


# --- Far from the keys -------------------------------------------------------------------------------------------

# For a query at D widths from the key at the edge of a gap, and a key t widths behind that edge,
#
#     exp(-(D + t)^2 / 2) = exp(-D^2 / 2) exp(-D t - t^2 / 2).
#
# The second factor is smooth in D. On an interval of D from 7/8 to 9/8 of its middle, 18 Chebyshev nodes give sums of
# it with an error below 1e-22 for each unit of weight beside that of the edge (the largest of
# exp(-8 z) z^18 / 2^18 18!, with z = D t / 8). So 18 exact sums in the log domain serve all queries of an interval.

# The first interval starts at two widths; each starts at 9/7 of the one before. Fewer queries take less time by pairs.
START, GROWTH, MIN_QUERIES = 2.0, 9 / 7, 36
# In widths. Its square is finite, and long before only the nearest key counts.
MAX_DISTANCE = 1e150
# More intervals than any distance in float64 needs.
INTERVALS = 4096


class _Side(NamedTuple):
    """The keys on one side of the queries.

    edge: (rows,), the key beside each query. distance: (rows,), to it in widths, infinite where there is none. counts:
    (rows,), whether its keys count beside the nearest one. interval: (rows,), a number for each edge and interval of
    distances.
    """

    edge: Tensor
    distance: Tensor
    counts: Tensor
    interval: Tensor
    is_right: bool


def accumulate_far(
    sums: KernelSums, rows: Tensor, queries: SortedQueries, data: SortedData, width: float, log_cutoff: float
) -> Tensor:
    """Fill the sums of those rows that share an interval with many others; return which they are, (rows,).

    log_cutoff: keys whose kernel is below exp(-log_cutoff) of the nearest key's do not count.
    """
    position, left = queries.position[rows], queries.left[rows].long()
    edges, keys = (left - 1, left), data.key.shape[0]
    distances = []
    for edge in edges:
        exists = (edge >= 0) & (edge < keys)
        away = ((position - data.key[edge.clamp(0, keys - 1)]).abs_() / width).clamp_(max=MAX_DISTANCE)
        distances.append(away.masked_fill_(~exists, torch.inf))
    near = torch.minimum(*distances)
    filled = near >= START
    sides = []
    for edge, distance, is_right in zip(edges, distances, (False, True), strict=True):
        counts = (distance == near) | ((distance - near) * (distance + near) <= 2 * log_cutoff)
        interval = (distance.clamp(START, 1e300) / START).log_().div_(math.log(GROWTH)).floor_().long()
        interval += edge * INTERVALS
        _, which, sizes = interval.unique(return_inverse=True, return_counts=True)
        filled &= ~counts | (sizes[which] >= MIN_QUERIES)
        sides.append(_Side(edge, distance, counts, interval, is_right))
    if filled.any():
        sums.overwrite(rows[filled], sums.sums.new_zeros(()), -0.5 * near[filled].square())
        for side in sides:
            _add_side(sums, rows, near, filled & side.counts, side, data, width, log_cutoff)
    return filled


def _add_side(
    sums: KernelSums,
    rows: Tensor,
    near: Tensor,
    chosen: Tensor,
    side: _Side,
    data: SortedData,
    width: float,
    log_cutoff: float,
) -> None:
    """Add the keys on one side to the chosen rows, in units of the kernel of the nearest key."""
    chosen = chosen.nonzero().squeeze(-1)
    if not chosen.numel():
        return
    intervals, interval_of = side.interval[chosen].unique(return_inverse=True)
    edge = intervals.div(INTERVALS, rounding_mode="floor")
    start = START * GROWTH ** (intervals - edge * INTERVALS).double()
    coefficients = _far_coefficients(edge, start, side.is_right, data, width, log_cutoff, sums.sums.shape[0])
    for some, which in zip(chosen.split(ROWS), interval_of.split(ROWS), strict=True):
        distance = side.distance[some]
        basis = polynomials((distance / start[which] - 8 / 7) * 7)
        found = torch.einsum("pr,crp->cr", basis, coefficients[:, which])
        if found.shape[0] > data.channels:
            _move_to_query(found, distance if not side.is_right else -distance, data.channels)
        further = distance - near[some]
        scale = torch.where(further == 0, 1.0, (-0.5 * further * (distance + near[some])).exp())
        sums.sums[:, rows[some]] += found * scale


def _far_coefficients(
    edge: Tensor, start: Tensor, is_right: bool, data: SortedData, width: float, log_cutoff: float, count: int
) -> Tensor:
    """Return the sums about each edge as functions of the distance, (count, intervals, 18)."""
    node, values_to_coefficients = nodes(data.key)
    distance = (start.unsqueeze(-1) * (8 + node) / 7).flatten()
    position = data.key[edge]
    radius = 2 * log_cutoff / (start + (start.square() + 2 * log_cutoff).sqrt()) * width
    if is_right:
        first, after = edge, torch.searchsorted(data.key, position + radius, right=True)
    else:
        first, after = torch.searchsorted(data.key, position - radius), edge + 1
    first, after, position = (each.repeat_interleave(TERMS) for each in (first, after, position))
    queries = SortedQueries(position, None, first, first, None, False)
    sums = KernelSums.zeros(queries, data, count > data.channels)

    def log_kernel(key: Tensor, edge: Tensor, distance: Tensor, width: Width) -> Tensor:
        # t (t + 2 D) / 2 with t from the edge: the query itself has no position that would have to be rounded.
        behind = (key - edge).abs_() / width
        return torch.where(behind == 0, 0.0, -0.5 * behind * (behind + 2 * distance))

    rows = torch.arange(position.shape[0], device=position.device)
    sum_pairs(sums, KeyRanges(rows, first, after, distance), queries, data, width, log_kernel)
    scaled = sums.sums if sums.log_scale is None else sums.sums * sums.log_scale.exp()
    return scaled.unflatten(1, (-1, TERMS)) @ values_to_coefficients.T


def _move_to_query(sums: Tensor, ahead: Tensor, channels: int) -> None:
    """Turn moments about the edge into moments about the query, which is `ahead` widths from it."""
    plain, first = sums[:channels], sums[channels : 2 * channels]
    sums[-1] += ahead * (ahead * plain[0] - 2 * first[0])
    first -= ahead * plain
