"""Local lines reproduce lines, keep their digits far away, and are flat where there is nothing to lean on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import exp, fsum, mp, mpf
from tests.regression.curves import KERNELS, wave

from regard.regression import NadarayaWatson


@settings(max_examples=25)
@given(offset=st.sampled_from([0.0, 1e3, -1e6]), slope=st.floats(-10, 10), seed=st.integers(0, 50))
def test_a_line_is_reproduced_beyond_its_ends(offset, slope, seed):
    x = np.random.default_rng(seed).uniform(0, 4, (29, 1)) + offset
    y = 3 + slope * (x[:, 0] - offset)
    model = NadarayaWatson(bandwidth=0.7, degree=1).fit(x, y)
    query = np.linspace(-2, 6, 17).reshape(-1, 1) + offset
    np.testing.assert_allclose(model.predict(query), 3 + slope * (query[:, 0] - offset), atol=1e-6)
    np.testing.assert_allclose(model.derivative(query)[:, 0], slope, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_plane_is_reproduced_inside(kernel):
    x, _ = wave(dim=2)
    y = 1 + x @ [2.0, -3.0]
    model = NadarayaWatson(kernel, [2.0, 3.0], degree=1).fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, atol=1e-10)


def test_far_away_against_exact_arithmetic():
    x, y = wave(37)
    mp.dps = 300
    model = NadarayaWatson(bandwidth=0.3, degree=1).fit(x, y)
    query = np.array([[-6.0], [-3.0], [-1.0], [0.0], [4.6], [6.0], [9.0]])
    for place, found in zip(query[:, 0], model.predict(query), strict=True):
        away = [mpf(float(key)) - mpf(float(place)) for key in x[:, 0]]
        mass = [exp(-((gap / mpf(0.3)) ** 2) / 2) for gap in away]
        zero, one, two = (fsum(m * gap**power for m, gap in zip(mass, away, strict=True)) for power in (0, 1, 2))
        value = [fsum(m * gap**power * mpf(v) for m, gap, v in zip(mass, away, y, strict=True)) for power in (0, 1)]
        exact = float((two * value[0] - one * value[1]) / (zero * two - one**2))
        assert found == pytest.approx(exact, rel=1e-10)


def test_one_key_in_the_window_gives_its_value():
    model = NadarayaWatson("epanechnikov", 1.0, degree=1).fit([[0.0], [3.0], [3.0]], [5.0, 1.0, 2.0])
    np.testing.assert_allclose(model.predict([[0.3], [3.4]]), [5.0, 1.5])
    np.testing.assert_array_equal(model.derivative([[0.3], [3.4]]), 0.0)


def test_a_constant_column_has_no_slope():
    x, y = wave()
    wide = np.column_stack([x, np.full(len(x), 7.0)])
    both = NadarayaWatson(bandwidth=[0.5, 1.0], degree=1).fit(wide, y)
    one = NadarayaWatson(bandwidth=0.5, degree=1).fit(x, y)
    np.testing.assert_allclose(both.predict(wide), one.predict(x), rtol=1e-9)
    np.testing.assert_allclose(both.derivative(wide)[:, 1], 0.0, atol=1e-12)


def test_the_bias_at_the_boundary_goes():
    x = np.linspace(0, 1, 101).reshape(-1, 1)
    y = 2 * x[:, 0]
    flat, line = (NadarayaWatson(bandwidth=0.1, degree=degree).fit(x, y) for degree in (0, 1))
    assert abs(flat.predict([[0.0]])[0]) > 0.1
    assert abs(line.predict([[0.0]])[0]) < 1e-10
    assert (line.weights([[0.0]]) < 0).any(), "the price: weights may be negative"


def test_lines_far_away_are_finite_or_flat():
    x = np.array([[0.0], [0.404]])
    model = NadarayaWatson(bandwidth=0.02, degree=1).fit(x, np.array([1.0, 2.0]))
    # Exact as long as the second key's weight is a normal number; then it is as good as gone.
    np.testing.assert_allclose(model.predict([[-0.4], [-0.6]]), [1 - 0.4 / 0.404, 1.0], atol=1e-12)
    assert np.isfinite(model.predict(np.linspace(-2, 2, 4001)[:, None])).all()


@pytest.mark.parametrize("variance", ["local", "global"])
def test_rows_apart_leave_the_band_of_the_others_finite(variance):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 1))
    model = NadarayaWatson(bandwidth=0.001, degree=1).fit(x, np.sin(x[:, 0]) + 0.1 * generator.normal(size=400))
    assert np.isfinite(model.confidence_band(x, 0.95, variance).standard_error).all()
