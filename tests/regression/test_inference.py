"""Confidence bands follow their formula and cover the mean of the estimator as often as they promise."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from tests.refuses import refuses
from tests.regression.coverage import constant_noise, growing_noise, measure
from tests.regression.curves import KERNELS, wave

from regard.regression import NadarayaWatson, inference
from regard.scores.kernels import KERNELS as FACTS
from regard.scores.names import KERNEL_SCORES


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_formula(kernel, degree):
    x, y = wave()
    model = NadarayaWatson(kernel, 0.9, degree=degree).fit(x, y)
    hat, query = model.weights(x), np.linspace(0.5, 3.5, 7).reshape(-1, 1)
    squared = (y - hat @ y) ** 2
    left = 1 - 2 * np.diag(hat) + (hat**2).sum(1)
    pooling = NadarayaWatson(kernel, 0.9).fit(x, y).weights(x)
    for variance, noise in (
        ("global", np.full(len(y), squared.sum() / left.sum())),
        ("local", (pooling @ squared) / (pooling @ left)),
    ):
        band = model.confidence_band(query, 0.9, variance)
        error = np.sqrt(model.weights(query) ** 2 @ noise)
        np.testing.assert_allclose(band.standard_error, error, rtol=1e-8)
        np.testing.assert_allclose(band.mean, model.predict(query), rtol=1e-12)
        np.testing.assert_allclose(band.upper - band.lower, 2 * norm.ppf(0.95) * error, rtol=1e-8)


@pytest.mark.parametrize("level", [0, 1, 95, "high"])
def test_a_level_is_a_probability(level):
    x, y = wave()
    with refuses("level"):
        NadarayaWatson(bandwidth=0.5).fit(x, y).confidence_band(x, level)


def test_an_unknown_variance_is_refused():
    x, y = wave()
    with refuses("variance", "'robust'"):
        NadarayaWatson(bandwidth=0.5).fit(x, y).confidence_band(x, variance="robust")


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["epanechnikov", "boxcar", "gaussian", "cosine_kernel"])
def test_where_nothing_varies_the_band_has_no_width(kernel, degree):
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(0, 1, (300, 1)), 0)
    y = np.where(x[:, 0] < 0.6, 0.0, generator.standard_normal(300) + 5)
    for weight in (None, generator.uniform(0.5, 2, 300)):
        band = NadarayaWatson(kernel, 0.05, degree=degree).fit(x, y, sample_weight=weight).confidence_band(x)
        assert np.isfinite(band.standard_error).all()
        silent = band.standard_error[x[:, 0] < 0.1]
        assert (silent <= 1e-6).all()
        assert (band.standard_error[x[:, 0] > 0.7] > 0.05).all()


def test_a_level_of_numpy_is_a_number():
    x, y = wave()
    model = NadarayaWatson("gaussian", 0.3).fit(x, y)
    bands = [model.confidence_band(x, level=level).lower for level in (0.75, np.float32(0.75))]
    np.testing.assert_array_equal(*bands)


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_far_away_the_band_is_that_of_the_nearest_observation(kernel, dtype):
    """There both log masses are so large that their difference has no digits."""
    x, y = (part.astype(dtype) for part in wave())
    model = NadarayaWatson(kernel, 0.4).fit(x, y)
    query = x.max() + np.array([[5.0], [40.0], [400.0], [4000.0]], dtype)
    noise = model.confidence_band(x, variance="global").standard_error / np.sqrt((model.weights(x) ** 2).sum(1))
    expected = noise[0] * np.sqrt((model.weights(query) ** 2).sum(1))
    found = model.confidence_band(query, variance="global").standard_error
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_shares_as_weights_are_named():
    x, y = wave(40)
    model = NadarayaWatson(bandwidth=0.3).fit(x, y, sample_weight=np.full(40, 1 / 40))
    with refuses("sample_weight", "to 1"):
        model.confidence_band(x[:3])


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", sorted(name for name in KERNEL_SCORES if FACTS[name].square))
def test_the_variance_of_lines_from_moments_is_that_of_rows(kernel, weighted, dim):
    """Rows of the hat matrix for all pairs are the judge; some observations have no noise, some queries no window."""
    generator = torch.Generator().manual_seed(dim)
    x, y = wave(200, dim)
    weight = torch.rand(200, generator=generator).double() + 0.1 if weighted else None
    smoother = NadarayaWatson(kernel, 0.2 * dim, degree=1).fit(x, y, sample_weight=weight).smoother_
    query = torch.rand(40, dim, generator=generator).double() * 1.6 - 0.3
    sigma2 = torch.rand(200, 2, generator=generator).double()
    sigma2[::7] = 0
    found = inference.estimator_variance(smoother, query, smoother.fit(query).log_mass, sigma2)
    assert torch.allclose(found, inference._variance_by_rows(smoother, smoother.task(query), sigma2), rtol=1e-8, atol=0)


def test_a_band_of_lines_does_not_cost_all_pairs(monkeypatch):
    x, y = wave(3000)
    asked = []
    rows = inference._variance_by_rows
    monkeypatch.setattr(
        inference, "_variance_by_rows", lambda fit, task, s: asked.append(len(task.query)) or rows(fit, task, s)
    )
    NadarayaWatson(bandwidth=0.1, degree=1).fit(x, y).confidence_band(x[:10])
    assert sum(asked) < 30


@pytest.mark.parametrize(
    ("noise", "variance"), [(constant_noise, "local"), (constant_noise, "global"), (growing_noise, "local")]
)
def test_the_estimators_mean_is_covered(noise, variance):
    found = measure(NadarayaWatson(bandwidth=0.3), simulations=60, noise=noise, variance=variance)
    assert 0.93 <= found.of_mean <= 0.97


def test_a_wide_band_is_not_one_for_the_curve():
    found = measure(NadarayaWatson(bandwidth=0.6), simulations=30)
    assert found.of_curve < 0.8 < 0.93 <= found.of_mean
