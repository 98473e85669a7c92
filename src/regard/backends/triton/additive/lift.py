"""The lift of eq. 12: tanh(a + b) as a short sum of products of functions of one token, with a bound on its error.

On |a| <= A, |b| <= B

    tanh(a + b)    is nearly  f(a) + g(b) + sum_r phi_r(a) psi_r(b),
    sech^2(a + b)  is nearly  sigma_0(a) + sum_r sigma_r(a) psi_r(b), and likewise with phi_r for the derivative in b.

The own terms f and g belong to one token each and need no matrix product, so the features phi and psi represent only
the interaction of a and b, the part of tanh(a + b) that is no sum of a function of a and one of b. The slopes sigma are
projections of sech^2 onto the features of the other side; derivatives of phi would lose digits.

The tables are computed in NumPy; only `lift_of` and `tables_on` make tensors. `lifted` has the kernels that read the
tables, and docs/additive.md explains the method.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError

# Cells of a table. Linear interpolation in 2,048 cells has an error of 2e-6 for the range 5, far below float16's.
CELLS = 2048
# Possible ranks; the features come in pairs, one even and one odd.
RANKS = range(4, 49, 2)
# Largest number of hidden units times rank, the length of the dot product, for which the bound holds.
MAX_PRODUCT = 4096

FLOAT16_ROUNDING = 2.0**-11  # relative
FLOAT16_SUBNORMAL_ROUNDING = 2.0**-25  # absolute
FLOAT32_ROUNDING = 2.0**-24  # relative
# Matrix units add 16 products at a time and truncate: MAX_PRODUCT / 16 times 2^-21 of the size of the sum.
ACCUMULATION_ERROR = 2.0**-13
# The errors are measured at grid points. This factor covers the pairs between them.
MARGIN = 1.05
# Products with smaller singular values are left out: their features would be subnormal, and they hardly contribute.
MIN_SINGULAR_VALUE = 2.0**-24

# Chebyshev nodes, at which the functions are sampled. They are dense at the ends, where errors are largest.
NUM_NODES = 300
# Points, relative to the range, at which errors are measured: both ends, 0, and centres of cells.
GRID = np.cos(np.pi * np.arange(501) / 500)
GRID[1::2] = (np.floor(GRID[1::2] * CELLS / 2) + 0.5) * 2 / CELLS
# Weight of an error of the slope beside an error of the value when the features are chosen.
SLOPE_WEIGHT = 0.3

Array = np.ndarray


class Tables(NamedTuple):
    """The functions of one side, queries or keys, at CELLS + 1 even steps over [-range, range], in float32.

    Attributes:
        range: largest |activation|.
        values: the features phi_r or psi_r, (CELLS + 1, rank).
        own_term: f or g, (CELLS + 1,).
        slopes: sigma_r, the factor of each feature of the other side in the derivative, (CELLS + 1, rank).
        own_slope: sigma_0, (CELLS + 1,).
    """

    range: float
    values: Tensor
    own_term: Tensor
    slopes: Tensor
    own_slope: Tensor


class Lift(NamedTuple):
    """The tables of queries and keys, and error bounds for every pair in range if hidden * rank <= MAX_PRODUCT.

    The bounds include what the kernels round: tables are read by linear interpolation in float32, features are rounded
    to float16 (the query's times w, scaled by a power of two so that max |w| is in [1/2, 1)), and products are summed
    in float32.

    Attributes:
        rank: number of products for each hidden unit.
        query: the tables of queries, on the CPU.
        key: the tables of keys, on the CPU.
        value_error: of each tanh; the error of a score is at most value_error * sum |w|.
        slope_error: of each sech^2; the error of the derivative of a score in one a or b is at most slope_error *
            max |w|.
    """

    rank: int
    query: Tables
    key: Tables
    value_error: float
    slope_error: float


class _SideFunctions(NamedTuple):
    """The functions of one side as arrays: for all ranks or one, at the steps of a table or at the grid points.

    Attributes:
        values: as in `Tables`; for all ranks they are orthonormal under the mean over the nodes.
        own_term: as in `Tables`.
        slopes: as in `Tables`.
        own_slope: as in `Tables`.
    """

    values: Array
    own_term: Array
    slopes: Array
    own_slope: Array


class _Decomposition(NamedTuple):
    """What all ranks of two ranges share.

    Attributes:
        query: the functions of queries, for all ranks.
        key: the functions of keys, for all ranks.
        core: the interaction in terms of both sides' values, (largest rank, largest rank).
        tanh: tanh(a + b) at the grid points, (points, points).
    """

    query: _SideFunctions
    key: _SideFunctions
    core: Array
    tanh: Array


@lru_cache
def lift_of(query_range: float, key_range: float, rank: int) -> Lift:
    """Return the lift of a rank for |a| <= query_range and |b| <= key_range.

    Args:
        query_range: largest |activation| of queries.
        key_range: largest |activation| of keys.
        rank: one of `RANKS`.

    Returns:
        The lift.

    Raises:
        RegardError: if the rank is not supported.

    >>> lift_of(2.0, 2.0, 6).query.values.shape
    torch.Size([2049, 6])
    """
    if rank not in RANKS:
        raise RegardError(
            "rank",
            got=str(rank),
            needed=f"an even number from {RANKS[0]} to {RANKS[-1]}",
            repair="Call smallest_rank for the rank of a tolerance.",
        )
    query, key = (
        Tables(side_range, *(torch.from_numpy(table) for table in functions))
        for side_range, functions in zip(
            (query_range, key_range), _functions_of_rank(query_range, key_range, rank), strict=True
        )
    )
    return Lift(rank, query, key, *error_bound(query_range, key_range, rank))


@lru_cache
def smallest_rank(query_range: float, key_range: float, tolerance: float, gradient: bool) -> int | None:
    """Return the smallest rank whose error bound is within a tolerance, or None if there is none.

    It makes no tensor: a tensor made while a call is traced would belong to the trace.

    Args:
        query_range: largest |activation| of queries.
        key_range: largest |activation| of keys.
        tolerance: error allowed for each tanh.
        gradient: whether the tolerance must also hold for its derivative.

    >>> smallest_rank(2.0, 2.0, 1e-2, gradient=True)
    8
    """
    for rank in RANKS:  # not a bisection, because near the rounding of float16 the bounds are not quite monotone
        value_error, slope_error = error_bound(query_range, key_range, rank)
        if value_error <= tolerance and (slope_error <= tolerance or not gradient):
            return rank
    return None


@lru_cache(maxsize=64)
def tables_on(device: torch.device, query_range: float, key_range: float, rank: int) -> tuple[Tables, Tables]:
    """Return the tables of queries and keys on a device; they are moved once."""
    lift = lift_of(query_range, key_range, rank)
    query, key = (Tables(side.range, *(table.to(device) for table in side[1:])) for side in (lift.query, lift.key))
    return query, key


@lru_cache(maxsize=4)
def _decomposition(query_range: float, key_range: float) -> _Decomposition:
    """Return the functions of both sides: singular vectors of value and slope side by side, on Chebyshev nodes."""
    nodes = np.cos(_angles())
    tanh = np.tanh(query_range * nodes[:, None] + key_range * nodes)
    interaction = tanh - tanh.mean(0) - tanh.mean(1, keepdims=True)  # tanh is odd, so the mean of all entries is 0
    sech2 = 1 - tanh**2
    query, key = _singular_vectors(interaction, sech2), _singular_vectors(interaction.T, sech2.T)
    return _Decomposition(
        _at_steps(query, key, tanh, sech2),
        _at_steps(key, query, tanh.T, sech2.T),
        query.T @ interaction @ key / NUM_NODES**2,
        np.tanh(query_range * GRID[:, None] + key_range * GRID),
    )


def _singular_vectors(interaction: Array, sech2: Array) -> Array:
    """Return a basis (nodes, largest rank) for the columns of the interaction, and of sech^2 up to constants."""
    slopes = SLOPE_WEIGHT * (sech2 - sech2.mean(0))
    left, _, _ = np.linalg.svd(np.hstack([interaction, slopes]), full_matrices=False)
    return left[:, : RANKS[-1]] * NUM_NODES**0.5


def _at_steps(own: Array, other: Array, tanh: Array, sech2: Array) -> _SideFunctions:
    """Return the functions of one side at the steps of its table, from nodes; tanh and sech2 are (own, other)."""
    own_slope = sech2.mean(1)
    slopes = (sech2 - own_slope[:, None]) @ other / NUM_NODES
    steps = _interpolation()
    return _SideFunctions(steps @ own, steps @ tanh.mean(1), steps @ slopes, steps @ own_slope)


def _functions_of_rank(query_range: float, key_range: float, rank: int) -> tuple[_SideFunctions, _SideFunctions]:
    """Return the functions of both sides for one rank, in float32.

    The core of this rank is made diagonal, and its singular values are split evenly between both sides.
    """
    both = _decomposition(query_range, key_range)
    query, sizes, key = np.linalg.svd(both.core[:rank, :rank])
    kept = sizes > MIN_SINGULAR_VALUE
    root, inverse = np.zeros(rank), np.zeros(rank)
    root[kept], inverse[kept] = sizes[kept] ** 0.5, sizes[kept] ** -0.5

    def side(functions: _SideFunctions, own: Array, other: Array) -> _SideFunctions:
        values = functions.values[:, :rank] @ own * root
        slopes = functions.slopes[:, :rank] @ other * inverse
        arrays = values, functions.own_term, slopes, functions.own_slope
        return _SideFunctions(*(x.astype(np.float32) for x in arrays))

    return side(both.query, query, key.T), side(both.key, key.T, query)


@lru_cache(maxsize=4096)
def error_bound(query_range: float, key_range: float, rank: int) -> tuple[float, float]:
    """Return bounds on the errors of value and slope: the errors at the grid points, and the most that rounding adds.

    Args:
        query_range: largest |activation| of queries.
        key_range: largest |activation| of keys.
        rank: one of `RANKS`.

    Returns:
        The value_error and the slope_error of `Lift`.
    """
    tanh = _decomposition(query_range, key_range).tanh
    query, key = (_at_grid(side) for side in _functions_of_rank(query_range, key_range, rank))
    hidden = MAX_PRODUCT / rank
    # A position in the table has three roundings of 2 * range, and no slope is above 1. Reading f, g and the product
    # and adding them rounds numbers below 3 a few times.
    reading = 8 * FLOAT32_ROUNDING * (query_range + key_range + 2)

    # f and g are sums over hidden units. A query's subnormals count against sum |w|, which may be as small as 1/2.
    value = np.abs(query.values @ key.values.T + query.own_term[:, None] + key.own_term - tanh).max() + reading
    value += _size(query.values, key.values) * (2 * FLOAT16_ROUNDING + FLOAT16_ROUNDING**2 + ACCUMULATION_ERROR)
    value += FLOAT16_SUBNORMAL_ROUNDING * (_size(query.values) + 2 * hidden * _size(key.values))
    value += FLOAT32_ROUNDING * hidden * (np.abs(query.own_term).max() + np.abs(key.own_term).max())

    sech2 = 1 - tanh**2
    slopes = [
        np.abs(own.slopes @ other.values.T + own.own_slope[:, None] - truth).max()
        + _size(own.slopes, other.values) * (FLOAT16_ROUNDING + ACCUMULATION_ERROR)
        + subnormal * _size(own.slopes)
        for own, other, truth, subnormal in (
            (query, key, sech2, FLOAT16_SUBNORMAL_ROUNDING),
            (key, query, sech2.T, 2 * FLOAT16_SUBNORMAL_ROUNDING),
        )
    ]
    return float(MARGIN * value), float(MARGIN * (max(slopes) + reading))


def _size(features: Array, others: Array | None = None) -> float:
    """Return the largest sum_r |feature_r|, or of all pairs the largest sum_r |feature_r other_r|."""
    absolute = np.abs(features)
    return (absolute.sum(1) if others is None else absolute @ np.abs(others).T).max()


def _at_grid(side: _SideFunctions) -> _SideFunctions:
    """Return the functions of one side at the grid points, by linear interpolation in its table."""
    position = (GRID + 1) / 2 * CELLS
    cell = np.minimum(position.astype(int), CELLS - 1)
    fraction = position - cell

    def read(table: Array) -> Array:
        low, high = (table[at].astype(float) for at in (cell, cell + 1))
        return low + (fraction * (high - low).T).T

    return _SideFunctions(*(read(table) for table in side))


def _angles() -> Array:
    """Return the angles whose cosines are the Chebyshev nodes, (nodes,)."""
    return np.pi * (np.arange(NUM_NODES) + 0.5) / NUM_NODES


@lru_cache
def _interpolation() -> Array:
    """Return the matrix (CELLS + 1, nodes) from values at the nodes to values at a table's steps, by Chebyshev sums."""
    orders = np.arange(NUM_NODES)
    coefficients = np.cos(np.outer(orders, _angles())) * np.where(orders, 2, 1)[:, None] / NUM_NODES
    return np.cos(np.outer(np.arccos(np.linspace(-1, 1, CELLS + 1)), orders)) @ coefficients
