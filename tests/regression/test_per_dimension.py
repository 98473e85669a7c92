"""One width per dimension, by gradient: it leaves a useless column wide and never makes the criterion worse."""

import numpy as np
import pytest
from tests.refuses import refuses
from tests.regression.curves import wave

from regard.regression import BandwidthWarning, NadarayaWatson, bandwidth
from regard.regression.criteria import CRITERIA

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
