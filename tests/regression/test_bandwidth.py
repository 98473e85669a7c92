"""Rules, numbers of neighbours, and one bandwidth per dimension."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gaussian_kde
from tests.refuses import refuses
from tests.regression.curves import KERNELS, estimate, wave

from regard.regression import BandwidthWarning, NadarayaWatson, Nearest, bandwidth
from regard.regression.bandwidth_search import canonical_bandwidth, canonical_ratio
from regard.regression.criteria import CRITERIA


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_the_rules_of_scipy(rule, dim):
    x, y = wave(dim=dim)
    factor = gaussian_kde(x.T, bw_method=rule).factor
    np.testing.assert_allclose(NadarayaWatson(bandwidth=rule).fit(x, y).bandwidth_, factor * x.std(0), rtol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_canonical_bandwidths(kernel):
    reach = 1 if kernel not in ("gaussian", "laplacian") else 60
    total, roughness, second = (
        2 * quad(function, 0, reach)[0]
        for function in (
            lambda d: KERNELS[kernel](np.float64(d)),
            lambda d: KERNELS[kernel](np.float64(d)) ** 2,
            lambda d: KERNELS[kernel](np.float64(d)) * d * d,
        )
    )
    assert canonical_bandwidth(kernel) == pytest.approx((roughness / total**2 / (second / total) ** 2) ** 0.2, rel=1e-7)
    x, y = wave()
    widths = [NadarayaWatson(name, "scott").fit(x, y).bandwidth_ for name in ("gaussian", kernel)]
    assert widths[1] / widths[0] == pytest.approx(canonical_ratio(kernel))


def test_repetitions_and_constant_columns():
    x, y = wave(dim=2)
    weight = np.random.default_rng(0).integers(1, 4, len(x))
    x[:, 1] = 1e6 + 0.1
    counted = NadarayaWatson(bandwidth="scott").fit(x, y, weight).bandwidth_
    repeated = NadarayaWatson(bandwidth="scott").fit(x.repeat(weight, 0), y.repeat(weight)).bandwidth_
    np.testing.assert_allclose(counted, repeated, rtol=1e-12)
    assert counted[1] == pytest.approx(weight.sum() ** (-1 / 6))


def test_the_best_number_of_neighbours():
    x, y = wave(43)
    model = NadarayaWatson("tricube", Nearest("loo")).fit(x, y)
    errors = {}
    for k in range(2, 43):
        found = []
        for row in range(43):
            others = np.arange(43) != row
            width = np.sort(np.abs(x[others, 0] - x[row, 0]))[k - 1]
            found.append(estimate(x[row], x[others], y[others], "tricube", width))
        errors[k] = np.mean((y - found) ** 2)
    assert model.criterion_ == pytest.approx(errors[model.bandwidth_.k], rel=1e-9)
    assert model.criterion_ <= sorted(errors.values())[2], "among the three best of all k"
    assert model.trials_.tried.tolist() == sorted(set(model.trials_.tried.tolist()))


def test_the_edge_is_told():
    x = np.linspace(0, 1, 30).reshape(-1, 1)
    with pytest.warns(BandwidthWarning, match="at the edge of what was tried, 2 neighbours"):
        NadarayaWatson(bandwidth=Nearest("loo")).fit(x, np.sin(40 * x[:, 0]))


def test_a_criterion_that_is_nowhere_finite_is_refused():
    with refuses("bandwidth", "'aicc'", "(3 rows)"):
        NadarayaWatson(bandwidth=Nearest("aicc")).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])


CASES = [("gaussian", 0, "loo"), ("biweight", 0, "loo"), ("gaussian", 1, "loo"), ("gaussian", 0, "aicc")]


@pytest.mark.parametrize(("kernel", "degree", "criterion"), CASES)
@pytest.mark.filterwarnings("ignore:the bandwidth of column:regard.regression.BandwidthWarning")
def test_it_finds_a_lower_criterion(kernel, degree, criterion):
    x, y = wave(61, dim=2)
    common = NadarayaWatson(kernel, criterion, degree=degree).fit(x, y)
    own = NadarayaWatson(kernel, criterion, degree=degree, per_dimension=True).fit(x, y)
    assert own.criterion_ < common.criterion_ - 1e-4
    if kernel == "gaussian":
        for factor in ([1.1, 1.0], [1.0, 1.1], [0.9, 1.0], [1.0, 0.9]):
            near = NadarayaWatson(kernel, own.bandwidth_ * factor, degree=degree).fit(x, y)
            assert _criterion(near, criterion) > own.criterion_ - 1e-6


def test_a_column_that_tells_nothing_is_wide_and_named(monkeypatch):
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 4, (80, 2))
    y = 2 * np.sin(2 * x[:, 0]) + 0.1 * generator.standard_normal(80)
    narrow, wide = NadarayaWatson(per_dimension=True).fit(x, y).bandwidth_
    assert wide > 10 * narrow
    monkeypatch.setattr(bandwidth, "WIDEST", 0.5)
    with pytest.warns(BandwidthWarning, match="column 1 grew"):
        NadarayaWatson(per_dimension=True).fit(x, y)


def test_a_flat_kernel_has_no_gradient():
    x, y = wave(dim=2)
    with refuses("per_dimension", "boxcar", "flat"):
        NadarayaWatson("boxcar", per_dimension=True).fit(x, y)


def _criterion(model, name):
    return float(CRITERIA[name](model.smoother_, 0).value)


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "laplacian"])
@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
def test_lines_that_are_solved_again_have_a_gradient_too(kernel, criterion):
    """Normal data have rows at the rim whose lines are lost in their moments, or that hold all of their own line."""
    for seed in range(3):
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(60, 2))
        y = np.sin(2 * x[:, 0]) + 0.1 * generator.normal(size=60)
        common = NadarayaWatson(kernel, criterion, degree=1).fit(x, y)
        own = NadarayaWatson(kernel, criterion, degree=1, per_dimension=True).fit(x, y)
        assert own.criterion_ <= common.criterion_
