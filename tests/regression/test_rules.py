"""Scott's and Silverman's rules, repetitions counted, carried over to other kernels."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gaussian_kde
from tests.regression.curves import KERNELS, wave

from regard.regression import NadarayaWatson
from regard.regression.bandwidth_search import canonical_bandwidth, canonical_ratio


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
