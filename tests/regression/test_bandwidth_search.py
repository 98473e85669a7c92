"""The search finds the lowest criterion, on all rows or through a sample, and warns where it stops at an edge."""

import math

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.regression.curves import KERNELS, left_out, two_valleys, wave

from regard.regression import BandwidthWarning, NadarayaWatson, bandwidth_search
from regard.regression.bandwidth_search import CriterionEvaluator, search_grid
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS as KERNEL_FACTS


def criterion(x, y, kernel, width, **how):
    return np.mean((y - left_out(x, y, kernel, width, **how)) ** 2)


def test_it_does_not_stop_in_the_wrong_valley():
    x, y = two_valleys()
    widths = np.geomspace(0.002, 0.3, 120)
    values = np.array([criterion(x, y, "gaussian", width) for width in widths])
    valleys = [i for i in range(1, 119) if values[i] < min(values[i - 1], values[i + 1])]
    assert len(valleys) == 2, "these data are here for their two local minima"
    best = widths[values.argmin()]
    other = widths[max(valleys, key=lambda i: values[i])]
    model = NadarayaWatson().fit(x, y)
    assert abs(np.log(model.bandwidth_ / best)) < 0.05 < abs(np.log(model.bandwidth_ / other))
    assert model.criterion_ <= values.min()
    assert model.criterion_ == pytest.approx(criterion(x, y, "gaussian", model.bandwidth_), rel=1e-10)


@pytest.mark.parametrize("weight", [0.5, 1 / 300, 1e-6])
def test_weights_that_are_shares_do_not_narrow_the_search(weight):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (300, 2))
    y = np.sin(12 * x[:, 0]) + 0.1 * rng.standard_normal(300)
    plain, weighted = NadarayaWatson().fit(x, y), NadarayaWatson().fit(x, y, np.full(300, weight))
    assert weighted.bandwidth_ == pytest.approx(plain.bandwidth_, rel=1e-4)
    assert weighted.criterion_ == pytest.approx(plain.criterion_, rel=1e-6)


@pytest.mark.parametrize("degree", [0, 1])
def test_the_width_has_five_digits(degree):
    x, y = wave()
    width = NadarayaWatson(degree=degree).fit(x, y).bandwidth_
    steps = width * np.exp([-1e-3, 0.0, 1e-3])
    below, here, above = (criterion(x, y, "gaussian", step, degree=degree) for step in steps)
    off = 1e-3 * (below - above) / (2 * (below - 2 * here + above))
    assert abs(off) < 5e-6


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_width_of_a_fine_scan_is_better(kernel):
    x, y = wave(41, seed=3)
    model = NadarayaWatson(kernel).fit(x, y)
    scan = min(criterion(x, y, kernel, width) for width in np.geomspace(0.1, 8, 150))
    # A compact kernel makes the criterion rough, a boxcar a step function: their lowest step may be missed by little.
    assert model.criterion_ <= scan * (1.005 if KERNEL_FACTS[kernel].is_compact else 1 + 1e-9)
    assert model.criterion_ == pytest.approx(criterion(x, y, kernel, model.bandwidth_), rel=1e-9)


def test_several_dimensions_share_one_factor():
    x, y = wave(dim=2)
    x[:, 1] *= 100
    model = NadarayaWatson().fit(x, y)
    assert model.bandwidth_.shape == (2,)
    np.testing.assert_allclose(model.bandwidth_ / x.std(0), (model.bandwidth_ / x.std(0))[0])
    assert model.criterion_ == pytest.approx(criterion(x, y, "gaussian", model.bandwidth_), rel=1e-10)


def test_the_scan_of_a_sample_leads_to_the_same_width(monkeypatch):
    x, y = wave(1500)
    whole = NadarayaWatson().fit(x, y)
    monkeypatch.setattr(bandwidth_search, "SCAN_ROWS", 300)
    sampled = NadarayaWatson().fit(x, y)
    assert len(sampled.trials_.tried) < len(whole.trials_.tried) / 2
    assert sampled.bandwidth_ == pytest.approx(whole.bandwidth_, rel=1e-5)


@pytest.mark.parametrize(
    ("kernel", "rule", "degree"),
    [("gaussian", "loo", 0), ("gaussian", "aicc", 0), ("epanechnikov", "loo", 0), ("gaussian", "loo", 1)],
)
def test_what_is_finer_than_the_sample_is_found_on_all_rows(monkeypatch, kernel, rule, degree):
    """A daily cycle in 200 days of hours, of which the sample has one in sixteen."""
    days = np.arange(4800) / 24
    noise = 0.5 * np.random.default_rng(0).standard_normal(4800)
    y = 10 * np.sin(2 * np.pi * days / 100) + 5 * np.sin(2 * np.pi * days) + noise
    whole = NadarayaWatson(kernel, rule, degree=degree).fit(days[:, None], y)
    monkeypatch.setattr(bandwidth_search, "SCAN_ROWS", 300)
    sampled = NadarayaWatson(kernel, rule, degree=degree).fit(days[:, None], y)
    assert sampled.bandwidth_ == pytest.approx(whole.bandwidth_, rel=0.1)
    assert sampled.criterion_ <= 1.01 * whole.criterion_


def test_neighbours_in_time_are_left_out():
    generator = np.random.default_rng(0)
    x = np.linspace(0, 4, 80).reshape(-1, 1)
    noise = np.convolve(generator.standard_normal(84), np.ones(5) / 2, "valid")
    y = 2 * np.sin(x[:, 0]) + noise
    fooled, careful = NadarayaWatson().fit(x, y), NadarayaWatson(exclude=4).fit(x, y)
    assert careful.bandwidth_ > 1.5 * fooled.bandwidth_
    assert careful.criterion_ == pytest.approx(criterion(x, y, "gaussian", careful.bandwidth_, exclude=4), rel=1e-10)


def test_rows_without_neighbours_are_counted():
    x = np.concatenate([wave(40)[0], [[100.0]]])
    y = np.concatenate([wave(40)[1], [3.0]])
    model = NadarayaWatson("epanechnikov").fit(x, y)
    assert model.loo_alone_ == 1
    assert model.criterion_ == pytest.approx(criterion(x, y, "epanechnikov", model.bandwidth_), rel=1e-9)


def test_one_row_is_not_enough():
    with refuses("X", "1 sample"):
        NadarayaWatson().fit([[1.0]], [1.0])
    assert NadarayaWatson(bandwidth=1.0).fit([[1.0]], [5.0]).predict([[9.0]]) == pytest.approx(5.0)


def test_an_outlier_leaves_no_width_to_the_grid():
    x = np.concatenate([np.random.default_rng(0).normal(size=60), [1e9]])
    found = NadarayaWatson("gaussian", bandwidth="loo").fit(x[:, None], np.sin(x))
    assert 0 < found.bandwidth_ < 1
    assert np.isfinite(found.criterion_)


@pytest.mark.parametrize("unit", [1e100, 1e150, 1e-150])
def test_values_of_any_unit_have_the_same_width(unit):
    x = np.random.default_rng(1).uniform(0, 4, 80)
    y = np.sin(3 * x)
    width = NadarayaWatson("gaussian", bandwidth="loo").fit(x[:, None], y).bandwidth_
    assert NadarayaWatson("gaussian", bandwidth="loo").fit(x[:, None], y * unit).bandwidth_ == pytest.approx(width)


@pytest.mark.parametrize(
    ("criterion", "degree", "rows", "unit"),
    [("gcv", 0, 2, 1.0), ("aicc", 0, 3, 1.0), ("gcv", 1, 3, 1.0), ("aicc", 0, 50, 0.0), ("loo", 0, 30, 1e200)],
)
def test_a_criterion_that_is_finite_nowhere_is_said(criterion, degree, rows, unit):
    x = np.linspace(0, 1, rows)[:, None]
    with refuses("bandwidth", f"'{criterion}', which is infinite or NaN"):
        NadarayaWatson(bandwidth=criterion, degree=degree).fit(x, unit * np.sin(6 * x[:, 0]))


@pytest.mark.parametrize("unit", [1e160, 1e308])
def test_distances_that_cannot_be_squared_are_refused(unit):
    x = np.linspace(-1, 1, 30)[:, None]
    with refuses("X", "numbers"):
        NadarayaWatson().fit(unit * x, np.sin(x[:, 0]))


@pytest.mark.parametrize(("degree", "said"), [(0, "nearly constant"), (1, "one straight line")])
def test_the_widest_width_is_told_for_what_it_is(degree, said):
    x = np.linspace(0, 1, 100)[:, None]
    y = np.random.default_rng(3).normal(size=100)
    with pytest.warns(BandwidthWarning, match=f"widest bandwidth tried, beyond the range of X: .*{said}"):
        NadarayaWatson(degree=degree).fit(x, y)


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
def test_rows_nearer_than_a_normal_number_have_a_width():
    x = np.array([0.0, 5e-324, 1e-323, 1.5e-323, 1.0, 2.0, 3.0])[:, None]
    assert 0 < NadarayaWatson("laplacian", "aicc").fit(x, np.arange(7.0)).bandwidth_ < np.inf


def test_rows_that_differ_by_less_than_a_normal_number_are_not_called_equal(recwarn):
    NadarayaWatson().fit(np.array([[1e-310], [2e-310], [3e-310]]), [1.0, 2.0, 3.0])
    assert not any("are equal" in str(warning.message) for warning in recwarn)


def many_rows_in_few_values(wave):
    """100,000 rows at 2,000 values close together, and 3,000 far apart: the median distance of all values is 1."""
    x = np.concatenate([np.repeat(np.arange(2000) * 1e-6, 50), 10 + np.arange(3000.0)])
    return x[:, None], wave(x) + 0.1 * np.random.default_rng(0).standard_normal(len(x))


@pytest.mark.parametrize(
    "wave",
    [lambda x: np.sin(x / 200), lambda x: np.where(x < 5, np.sin(5000 * x), np.sin(x / 200))],
    ids=["wide", "narrow"],
)
def test_rows_that_repeat_in_a_narrow_cluster_have_the_best_width_of_a_wide_scan(wave):
    x, y = many_rows_in_few_values(wave)
    model = NadarayaWatson("gaussian", "loo").fit(x, y)
    fixed = [NadarayaWatson("gaussian", width).fit(x, y).smoother_ for width in np.geomspace(1e-7, 1e4, 12)]
    errors = [float(np.square(y - each.pool_left_out(0).mean[:, 0].numpy()).mean()) for each in fixed]
    assert model.criterion_ <= min(errors)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("criterion_", ["loo", "aicc", "gcv"])
@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
def test_a_sample_of_equal_rows_leaves_the_search_to_all_rows(monkeypatch, kernel, criterion_):
    monkeypatch.setattr(bandwidth_search, "SCAN_ROWS", 20)
    x = np.concatenate([np.zeros(2000), [1e6, 2e6, 3e6]])[:, None]
    y = np.random.default_rng(0).standard_normal(len(x))
    assert np.isfinite(NadarayaWatson(kernel, criterion_).fit(x, y).criterion_)


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
