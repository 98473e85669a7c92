"""The lift of eq. 12: tanh(a + b) as a short sum of products of one-token features, and the error that it promises.

On |a| <= A, |b| <= B

    tanh(a + b)   ≈ f(a) + g(b) + sum_r phi_r(a) psi_r(b)
    sech²(a + b)  ≈ slope_0(a) + sum_r slope_r(a) psi_r(b),    and likewise over 1, phi_r for the derivative in b.

f and g belong to one token each and cost no matrix product, so that the features hold the interaction of a and b only.
The derivative is projected onto the features of the other side, not taken of phi: differentiating loses digits.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError

CELLS = 2048  # linear interpolation between so many cells errs by 2e-6 at reach 5: nothing beside float16
RANKS = range(4, 49, 2)  # functions come in pairs, one even and one odd
WIDEST = 4096  # hidden units times rank: the longest product that the promise is made for

HALF = 2.0**-11  # rounding to float16, relative
HALF_SMALLEST = 2.0**-25  # rounding to float16, absolute: the subnormals
SINGLE = 2.0**-24  # rounding to float32, relative
ACCUMULATION = 2.0**-13  # matrix units add 16 products at a time and cut off: WIDEST / 16 times 2^-21 of the sum's size
MARGIN = 1.05  # for what lies between the pairs where the errors are looked at
SMALLEST = 2.0**-24  # components below it are left out: their features would be subnormal, their share is nothing

NODES = 300  # Chebyshev's: dense at the ends, where errors are largest
CHECKED = np.cos(np.pi * np.arange(501) / 500)  # of the reach: where errors are looked at, both ends and 0 among them
CHECKED[1::2] = (np.floor(CHECKED[1::2] * CELLS / 2) + 0.5) * 2 / CELLS  # ... and centres of cells
SLOPE_WEIGHT = 0.3  # what errors of the slope count beside errors of the value when the functions are chosen

Array = np.ndarray


class Side(NamedTuple):
    """What one kind of token needs: float32 tables on the CPU, at CELLS + 1 even steps over [-reach, reach]."""

    reach: float
    values: Tensor  # (CELLS + 1, rank): phi_r or psi_r
    alone: Tensor  # (CELLS + 1,): f or g
    slopes: Tensor  # (CELLS + 1, rank): slope_r, the derivative's share of each feature of the other side
    slope_alone: Tensor  # (CELLS + 1,): slope_0


class Lift(NamedTuple):
    """The tables of queries and keys, and bounds that hold for every pair in range and hidden * rank <= WIDEST.

    They count what the kernels do: tables read by linear interpolation in float32, features rounded to float16 (the
    query's times w, scaled by a power of two so that max |w| is in [1/2, 1)), products summed in float32.
    """

    rank: int
    query: Side
    key: Side
    value_error: float  # of each tanh: a score errs by at most value_error * |w|_1
    slope_error: float  # of each sech²: the derivative of a score in one a or b errs by at most slope_error * max |w|


class _Arrays(NamedTuple):
    """The tables of one side: before a rank is chosen, of a rank, or as the kernels read them at the checked points."""

    values: Array  # before: functions that are orthonormal under the mean over the nodes
    alone: Array
    slopes: Array  # before: in the functions of the other side
    slope_alone: Array


class _Decomposition(NamedTuple):
    """What all ranks of two reaches share."""

    query: _Arrays
    key: _Arrays
    core: Array  # (most ranks, most ranks): the interaction in the functions of both sides
    tanh: Array  # (checked, checked): the truth


@lru_cache
def lift_of(query_reach: float, key_reach: float, rank: int) -> Lift:
    """The lift of this rank for |a| <= query_reach, |b| <= key_reach."""
    if rank not in RANKS:
        needed = f"an even number from {RANKS[0]} to {RANKS[-1]}"
        raise RegardError("rank", got=str(rank), needed=needed, repair="ask rank_for for a rank")
    query, key = (
        Side(reach, *(torch.from_numpy(table) for table in tables))
        for reach, tables in zip((query_reach, key_reach), _tables(query_reach, key_reach, rank), strict=True)
    )
    return Lift(rank, query, key, *promise_of(query_reach, key_reach, rank))


def lift_for(query_reach: float, key_reach: float, tolerance: float, gradient: bool) -> Lift | None:
    """The lift of the smallest rank that promises the tolerance, for its slopes too where a gradient is wanted."""
    rank = rank_for(query_reach, key_reach, tolerance, gradient)
    return None if rank is None else lift_of(query_reach, key_reach, rank)


@lru_cache
def rank_for(query_reach: float, key_reach: float, tolerance: float, gradient: bool) -> int | None:
    """That rank; no tensor is made, because somebody may watch who would make it one of their own."""
    for rank in RANKS:  # not a bisection: near the floor of float16 the promises are not quite monotone
        value_error, slope_error = promise_of(query_reach, key_reach, rank)
        if value_error <= tolerance and (slope_error <= tolerance or not gradient):
            return rank
    return None


@lru_cache(maxsize=64)
def sides_on(device: torch.device, query_reach: float, key_reach: float, rank: int) -> tuple[Side, Side]:
    """The tables of queries and keys on a device, moved once."""
    lift = lift_of(query_reach, key_reach, rank)
    query, key = (Side(side.reach, *(table.to(device) for table in side[1:])) for side in (lift.query, lift.key))
    return query, key


@lru_cache(maxsize=4)
def _decomposition(query_reach: float, key_reach: float) -> _Decomposition:
    """Functions for value and slope at once: singular vectors of both side by side, on Chebyshev nodes."""
    nodes = np.cos(_angles())
    tanh = np.tanh(query_reach * nodes[:, None] + key_reach * nodes)
    interaction = tanh - tanh.mean(0) - tanh.mean(1, keepdims=True)  # its mean is 0 on either side: tanh is odd
    sech = 1 - tanh**2
    query, key = _functions(interaction, sech), _functions(interaction.T, sech.T)
    return _Decomposition(
        _on_grid(query, key, tanh, sech),
        _on_grid(key, query, tanh.T, sech.T),
        query.T @ interaction @ key / NODES**2,
        np.tanh(query_reach * CHECKED[:, None] + key_reach * CHECKED),
    )


def _functions(interaction: Array, sech: Array) -> Array:
    """(nodes, most ranks): what represents the columns of the interaction, and those of sech² up to constants."""
    slopes = SLOPE_WEIGHT * (sech - sech.mean(0))
    left, _, _ = np.linalg.svd(np.hstack([interaction, slopes]), full_matrices=False)
    return left[:, : RANKS[-1]] * NODES**0.5


def _on_grid(own: Array, other: Array, tanh: Array, sech: Array) -> _Arrays:
    """One side from nodes to the points of its table; the axes of tanh and sech are (own, other)."""
    slope_alone = sech.mean(1)
    slopes = (sech - slope_alone[:, None]) @ other / NODES
    at = _from_nodes()
    return _Arrays(at @ own, at @ tanh.mean(1), at @ slopes, at @ slope_alone)


def _tables(query_reach: float, key_reach: float, rank: int) -> tuple[_Arrays, _Arrays]:
    """The core of this rank made diagonal, its singular values split evenly between both sides; in float32."""
    both = _decomposition(query_reach, key_reach)
    query, sizes, key = np.linalg.svd(both.core[:rank, :rank])
    kept = sizes > SMALLEST
    root, inverse = np.zeros(rank), np.zeros(rank)
    root[kept], inverse[kept] = sizes[kept] ** 0.5, sizes[kept] ** -0.5

    def side(whole: _Arrays, own: Array, other: Array) -> _Arrays:
        values = whole.values[:, :rank] @ own * root
        slopes = whole.slopes[:, :rank] @ other * inverse
        return _Arrays(*(x.astype(np.float32) for x in (values, whole.alone, slopes, whole.slope_alone)))

    return side(both.query, query, key.T), side(both.key, key.T, query)


@lru_cache(maxsize=4096)
def promise_of(query_reach: float, key_reach: float, rank: int) -> tuple[float, float]:
    """Bounds on the errors of value and slope: what is seen at the checked pairs, and what rounding can add."""
    tanh = _decomposition(query_reach, key_reach).tanh
    query, key = (_at_checked(side) for side in _tables(query_reach, key_reach, rank))
    hidden = WIDEST / rank
    # A position in the table is off by three roundings of 2 reach, which no slope multiplies by more than 1; reading
    # and adding up f, g and the product rounds numbers below 3 a few times.
    reading = 8 * SINGLE * (query_reach + key_reach + 2)

    # f and g are sums over hidden units. A query's subnormals count against |w|_1, which may be as small as 1/2.
    value = np.abs(query.values @ key.values.T + query.alone[:, None] + key.alone - tanh).max() + reading
    value += _size(query.values, key.values) * (2 * HALF + HALF**2 + ACCUMULATION)
    value += HALF_SMALLEST * (_size(query.values) + 2 * hidden * _size(key.values))
    value += SINGLE * hidden * (np.abs(query.alone).max() + np.abs(key.alone).max())

    sech = 1 - tanh**2
    slopes = [
        np.abs(own.slopes @ other.values.T + own.slope_alone[:, None] - truth).max()
        + _size(own.slopes, other.values) * (HALF + ACCUMULATION)
        + subnormal * _size(own.slopes)
        for own, other, truth, subnormal in (
            (query, key, sech, HALF_SMALLEST),
            (key, query, sech.T, 2 * HALF_SMALLEST),
        )
    ]
    return float(MARGIN * value), float(MARGIN * (max(slopes) + reading))


def _size(features: Array, others: Array | None = None) -> float:
    """The largest sum_r |feature_r|, or sum_r |feature_r other_r| over all pairs."""
    absolute = np.abs(features)
    return (absolute.sum(1) if others is None else absolute @ np.abs(others).T).max()


def _at_checked(side: _Arrays) -> _Arrays:
    """A side read by linear interpolation."""
    position = (CHECKED + 1) / 2 * CELLS
    cell = np.minimum(position.astype(int), CELLS - 1)
    share = position - cell

    def read(table: Array) -> Array:
        low, high = (table[at].astype(float) for at in (cell, cell + 1))
        return low + (share * (high - low).T).T

    return _Arrays(*(read(table) for table in side))


def _angles() -> Array:
    """(nodes,): the nodes are their cosines."""
    return np.pi * (np.arange(NODES) + 0.5) / NODES


@lru_cache
def _from_nodes() -> Array:
    """(CELLS + 1, nodes): takes a function's values at the nodes to those at a table's points, by its Chebyshev sum."""
    orders = np.arange(NODES)
    coefficients = np.cos(np.outer(orders, _angles())) * np.where(orders, 2, 1)[:, None] / NODES
    return np.cos(np.outer(np.arccos(np.linspace(-1, 1, CELLS + 1)), orders)) @ coefficients
