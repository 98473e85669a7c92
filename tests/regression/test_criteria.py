"""The criteria are what their formulas say, from the hat matrix."""

import numpy as np
import pytest
from statsmodels.nonparametric.kernel_regression import KernelReg
from tests.refuses import refuses
from tests.regression.curves import wave

from regard.regression import NadarayaWatson, Nearest
from regard.regression.criteria import CRITERIA


@pytest.mark.parametrize("degree", [0, 1])
def test_aicc_and_gcv_from_the_hat_matrix(degree):
    x, y = wave(dim=2)
    model = NadarayaWatson(bandwidth=[0.8, 1.1], degree=degree).fit(x, y)
    hat = model.weights(x)
    n, trace, error = len(y), np.trace(hat), np.mean((y - hat @ y) ** 2)
    aicc = np.log(error) + 1 + 2 * (trace + 1) / (n - trace - 2)
    assert model.aicc_ == pytest.approx(aicc, rel=1e-10)
    assert float(CRITERIA["gcv"](model.smoother_, 0).value) == pytest.approx(error / (1 - trace / n) ** 2, rel=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_aicc_is_that_of_statsmodels():
    x, y = wave()
    theirs = KernelReg(y, x, "c", reg_type="lc", bw=np.array([0.4]))
    model = NadarayaWatson(bandwidth=0.4).fit(x, y)
    assert model.aicc_ == pytest.approx(float(np.squeeze(theirs.aic_hurvich(np.array([0.4])))), rel=1e-10)


@pytest.mark.parametrize("criterion", ["aicc", "gcv"])
def test_they_choose_a_width(criterion):
    x, y = wave(101)
    model = NadarayaWatson(bandwidth=criterion).fit(x, y)
    nearby = [NadarayaWatson(bandwidth=model.bandwidth_ * factor).fit(x, y) for factor in (0.8, 1.25)]
    assert all(float(CRITERIA[criterion](near.smoother_, 0).value) > model.criterion_ for near in nearby)


@pytest.mark.parametrize("criterion", ["aicc", "gcv"])
def test_a_curve_through_all_observations_is_never_best(criterion):
    x, y = wave()
    value = CRITERIA[criterion](NadarayaWatson("boxcar", 1e-9).fit(x, y).smoother_, 0).value
    assert float(value) == np.inf


@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.parametrize("level", [3.0, 3.3, 1e8])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("criterion", ["loo", "gcv"])
def test_of_widths_that_fit_alike_the_widest_is_taken(criterion, degree, level):
    """y without noise, a constant or a line: what is left is its rounding, which tells nothing about a width."""
    x, _ = wave(100)
    y = np.full(len(x), level) + degree * 3 * x[:, 0]
    model = NadarayaWatson(bandwidth=criterion, degree=degree).fit(x, y)
    assert model.bandwidth_ > np.ptp(x)
    assert model.criterion_ == 0


def test_aicc_of_y_without_noise_is_refused():
    x, _ = wave(100)
    with refuses("bandwidth", "exactly", "fitted"):
        NadarayaWatson(bandwidth="aicc").fit(x, np.full(len(x), 3.3))


@pytest.mark.parametrize("bandwidth", ["aicc", "gcv", Nearest("loo")])
def test_weights_that_are_shares_cannot_be_counted(bandwidth):
    x, y = wave(40)
    with refuses("sample_weight", "to 1", "40"):
        NadarayaWatson(bandwidth=bandwidth).fit(x, y, sample_weight=np.full(40, 1 / 40))
