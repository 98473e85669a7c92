"""Bands cover the estimator's mean as often as they say, and the curve itself less often."""

import pytest
from tests.regression.coverage import constant_noise, growing_noise, measure

from regard.regression import NadarayaWatson


@pytest.mark.parametrize(
    ("noise", "variance"), [(constant_noise, "local"), (constant_noise, "global"), (growing_noise, "local")]
)
def test_the_estimators_mean_is_covered(noise, variance):
    found = measure(NadarayaWatson(bandwidth=0.3), simulations=60, noise=noise, variance=variance)
    assert 0.93 <= found.of_mean <= 0.97


def test_a_wide_band_is_not_one_for_the_curve():
    found = measure(NadarayaWatson(bandwidth=0.6), simulations=30)
    assert found.of_curve < 0.8 < 0.93 <= found.of_mean
