"""The lowest point is found among several valleys, to many digits, with few evaluations."""

import math

import numpy as np
import pytest
import torch

from regard.regression.bandwidth_search import CriterionEvaluator, search_grid
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations

GRID = np.arange(-5, 5.01, 0.35).tolist()


class Curve(CriterionEvaluator):
    """A function in place of a criterion; it counts how often it is called."""

    def __init__(self, function):
        row = torch.zeros(1, 1, dtype=torch.float64)
        super().__init__(Smoother(Observations(row, row), "gaussian", 1.0), "loo", 0, 0)
        self.function = function

    can_scan = False

    def _evaluate(self, position):
        return self.function(position), 0


def minimise(function, grid, *, rough=False):
    """The position and the value of the lowest point, and the curve."""
    curve = Curve(function)
    search_grid(curve, grid, rough)
    return curve.lowest(), curve.values[curve.lowest()], curve


def test_a_smooth_valley_to_many_digits():
    found, _, curve = minimise(lambda x: math.cosh(x - 1.2345) + 0.1 * x, GRID[::2])
    expected = 1.2345 - math.asinh(0.1)
    assert found == pytest.approx(expected, abs=1e-6)
    assert GRID[0] < found < GRID[-1]
    assert len(curve.values) <= len(GRID[::2]) + 18


@pytest.mark.parametrize("deeper", [-2.1, 2.3])
def test_the_deeper_of_two_valleys(deeper):
    def valleys(x):
        return -math.exp(-((x + 2.1) ** 2)) - math.exp(-((x - 2.3) ** 2)) - 0.003 * math.exp(-((x - deeper) ** 2))

    found, _, _ = minimise(valleys, GRID)
    assert found == pytest.approx(deeper, abs=1e-5)


def test_a_valley_that_is_deeper_only_between_grid_points():
    def valleys(x):
        near_grid, between = GRID[8], (GRID[20] + GRID[21]) / 2
        return 2 - math.exp(-10 * (x - near_grid) ** 2) - 1.05 * math.exp(-10 * (x - between) ** 2)

    found, _, _ = minimise(valleys, GRID)
    assert valleys(GRID[8]) < min(valleys(GRID[20]), valleys(GRID[21]))
    assert found == pytest.approx((GRID[20] + GRID[21]) / 2, abs=1e-5)


def test_two_valleys_that_a_coarse_grid_shows_as_one():
    def valleys(x):
        return 3 - math.exp(-6 * (x + 0.45) ** 2) - 1.02 * math.exp(-6 * (x - 0.35) ** 2)

    found, _, _ = minimise(valleys, np.arange(-4.9, 5, 0.7).tolist())
    assert found == pytest.approx(0.35, abs=0.05)


def test_an_edge_is_reported():
    assert minimise(lambda x: x, GRID)[0] == GRID[0]
    assert minimise(lambda x: -x, GRID)[0] == GRID[-1]


def test_of_equal_values_the_larger_place():
    found, _, _ = minimise(lambda x: 0.0 if -1 < x < 1 else 1.0, GRID)
    assert max(place for place in GRID if place < 1) <= found < 1


def test_what_is_not_a_number_is_never_chosen():
    found, _, _ = minimise(lambda x: math.nan if x < 0 else (x - 1) ** 2, GRID)
    assert found == pytest.approx(1, abs=1e-4)


def test_a_rough_curve_ends():
    _, value, curve = minimise(lambda x: abs(x) + 0.3 * math.floor(5 * x % 2), GRID)
    assert value <= min(abs(x) + 0.3 * math.floor(5 * x % 2) for x in GRID)
    assert len(curve.values) < len(GRID) + 60


def test_low_ground_of_a_rough_curve_is_scanned_again():
    def dip(x):
        return 10 + x * x - (0.05 if 0.1 < x < 0.2 else 0.0)

    assert minimise(dip, GRID)[1] > 9.99
    assert minimise(dip, GRID, rough=True)[1] < 9.98
