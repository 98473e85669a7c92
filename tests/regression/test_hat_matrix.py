"""Rows of the hat matrix and local lines: over nearby keys as over all keys, exact far away."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import exp, fsum, mp, mpf
from tests.regression.curves import KERNELS, wave

from regard import inspect
from regard.regression import NadarayaWatson, hat_matrix, inference
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.names import KERNEL_SCORES


@pytest.mark.parametrize("dim", [1, 2])
def test_lines_by_blocks_are_the_lines_of_the_moments(monkeypatch, dim):
    x, y = wave(dim=dim)
    data = Observations(torch.tensor(x), torch.stack([torch.tensor(y), torch.tensor(y) ** 2], -1))
    smoother = Smoother(data, "gaussian", 0.8, degree=1)
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 700)
    assert len(list(hat_matrix.row_blocks(data, len(data.key)))) > 10
    lines, fit = hat_matrix.local_lines(smoother.task(data.key)), smoother.fit(data.key)
    torch.testing.assert_close(lines.mean, fit.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lines.slope, fit.slope, rtol=1e-7, atol=1e-7)
    rows = hat_matrix.hat_rows(smoother.task(data.key), 1)
    torch.testing.assert_close(rows.weight @ data.value, fit.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rows.weight.diagonal(), fit.leverage, rtol=1e-9, atol=1e-9)
    slopes = torch.einsum("qkd,ko->qdo", rows.slope_weight, data.value)
    torch.testing.assert_close(slopes, fit.slope, rtol=1e-7, atol=1e-7)


WIDTHS = (1e-5, 1 / 512, 5 / 512, 0.1, 3.0)


def drawn(dtype, weighted):
    """Keys on a grid, so that some are at the very edge of a window, some twice; two outputs."""
    torch.manual_seed(3)
    key = (100 + torch.rand(200, 1, dtype=torch.float64)).mul(512).round().div(512).to(dtype)
    weight = torch.randint(1, 4, (200,)).to(dtype) if weighted else None
    return Observations(key, torch.randn(200, 2, dtype=dtype), weight)


@pytest.mark.parametrize("kernel", sorted(KERNEL_SCORES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("weighted", "exclude"), [(False, None), (False, 2), (True, None), (True, 0)])
def test_lines_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype, weighted, exclude):
    data = drawn(dtype, weighted)
    own = None if exclude is None else torch.randperm(200)
    query = 99.8 + 1.4 * torch.rand(150, 1, dtype=dtype) if own is None else data.key[own]
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 5000)
    for width in WIDTHS:
        task = Smoother(data, kernel, width, degree=1).task(query)._replace(leave_out=exclude)
        near = hat_matrix.local_lines(task, own)
        with monkeypatch.context() as patch:
            patch.setattr(hat_matrix, "_windows", lambda *_: None)
            everything = hat_matrix.local_lines(task, own)
        assert torch.equal(near.needs_exact, everything.needs_exact)
        room = 1e4 * torch.finfo(dtype).eps
        torch.testing.assert_close(near.mean, everything.mean, rtol=room, atol=room)


@pytest.mark.parametrize("kernel", ["epanechnikov", "gaussian", "laplacian"])
def test_many_narrow_windows_are_not_compared_with_all_keys(monkeypatch, kernel):
    data = Observations(torch.rand(5000, 1, dtype=torch.float64), torch.randn(5000, 1, dtype=torch.float64))
    pairs = []

    def counted(query, key, *rest, **settings):
        pairs.append(key.shape[:-1].numel() if key.ndim == 3 else len(query) * len(key))
        return inspect(query, key, *rest, **settings)

    monkeypatch.setattr(hat_matrix, "inspect", counted)
    task = Smoother(data, kernel, 1e-7, degree=1).task(data.key)._replace(leave_out=0)
    hat_matrix.local_lines(task, torch.arange(5000))
    assert sum(pairs) < 16 * 5000


@pytest.mark.parametrize("width", [0.02, 0.9])
def test_no_more_pairs_exist_at_once_than_are_allowed(monkeypatch, width):
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 900)
    task = Smoother(drawn(torch.float64, weighted=False), "epanechnikov", width, degree=1).task
    query, data = drawn(torch.float64, weighted=False).key, drawn(torch.float64, weighted=False)
    parts = list(hat_matrix.nearby_keys(task(query)))
    assert torch.cat([some for some, _ in parts]).sort().values.tolist() == list(range(200))
    for some, block in parts:
        entries = block.row.numel() * 3 if block.padding is not None else len(some) * block.row.numel() * 3
        assert len(some) == 1 or entries <= 900
        for place, position in enumerate(some.tolist()):
            near = ((query[position] - data.key[:, 0]).abs() < width).nonzero().flatten().tolist()
            seen = block.row if block.padding is None else block.row[place][~block.padding[place]]
            assert set(near) <= set(seen.tolist())


@pytest.mark.parametrize("kernel", sorted(KERNEL_SCORES.keys() - {"boxcar"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_and_bands_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype):
    data = drawn(dtype, weighted=True)
    query = 99.9 + 1.2 * torch.rand(150, 1, dtype=dtype)
    sigma2 = torch.rand(200, 2, dtype=dtype)
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 5000)

    def derivative_and_variance():
        return inference._derivative_by_pairs(smoother, query)[0], inference._variance_by_rows(smoother, task, sigma2)

    for width in WIDTHS[1:]:
        smoother = Smoother(data, kernel, width)
        task = smoother.task(query)
        near = inference.derivative(smoother, query)[0], derivative_and_variance()[1]
        with monkeypatch.context() as patch:
            patch.setattr(hat_matrix, "_windows", lambda *_: None)
            everything = derivative_and_variance()
        for found, expected in zip(near, everything, strict=True):
            room = 1e3 * torch.finfo(dtype).eps * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(found, expected, rtol=0, atol=room)


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
