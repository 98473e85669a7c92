"""One-dimensional sums of the Gaussian kernel to an error bound, in near-linear time after sorting.

Near the keys the sums come from cells (`gaussian_cells`), with a bound of their error in each row. Rows that they
cannot promise to the tolerance (far from every key, in a gap, or with most of the mass in the row that is left out) are
summed pair by pair in the log domain, over the keys that matter beside the nearest one: so a query is never empty, and
far away from all keys it is its nearest key. Where many such rows share a gap, they are interpolated between sums of
this kind (`gaussian_far`).
"""

import math

import torch
from torch import Tensor

from regard.regression.sums.gaussian_cells import CellGrid, fill
from regard.regression.sums.gaussian_far import fill_far
from regard.regression.sums.line import KernelSums, KeyRanges, SortedData, SortedQueries, sum_pairs, tolerance_of
from regard.regression.sums.observations import Pool

# Mean keys in reach of a query up to which pairs are cheaper than cells.
FEW = 64
# Distance from the nearest key, in widths, up to which the cells can promise a row.
NEAR = 5
EPS = torch.finfo(torch.float64).eps


def pool(
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
            unsure = fill(totals, asked, line, grid, allowed)
        rows = unsure.nonzero().squeeze(-1)
        if rows.numel() and not leaves_itself:
            rows = rows[~fill_far(totals, rows, asked, line, width, depth)]
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
