"""The curve sorts its data once, and its bandwidth may follow the distance to the k-th neighbour."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.regression.curves import KERNELS, estimate, wave

from regard.regression import NadarayaWatson, Nearest
from regard.regression.smoother import Smoother, kth_distances
from regard.regression.sums import Observations


def test_data_are_prepared_once_for_all_widths():
    x, y = wave()
    data = Observations(torch.tensor(x), torch.tensor(y).unsqueeze(-1))
    first = Smoother(data, "gaussian", 1.0)
    assert replace(first, width=0.5).data.sorted is first.data.sorted
    other = replace(first, data=replace(data, value=-data.value))
    assert other.data.sorted is not first.data.sorted
    torch.testing.assert_close(other.fit(data.key).mean, -first.fit(data.key).mean)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_query_has_its_own_width(kernel):
    x, y = wave()
    query = np.array([[-3.0], [1.0], [3.9]])
    model = NadarayaWatson(kernel, Nearest(9)).fit(x, y)
    assert model.bandwidth_ == Nearest(9)
    expected = [estimate(q, x, y, kernel, np.sort(np.abs(x[:, 0] - q))[8]) for q in query]
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-9)
    np.testing.assert_allclose(model.weights(query) @ y, expected, rtol=1e-9)


def test_columns_are_measured_in_standard_deviations():
    x, y = wave(dim=2)
    scaled = x * [1.0, 1000.0]
    models = [NadarayaWatson(bandwidth=Nearest(9), degree=1).fit(data, y) for data in (x / x.std(0), scaled)]
    np.testing.assert_allclose(models[0].predict(x / x.std(0)), models[1].predict(scaled), rtol=1e-9)
    slopes = models[0].derivative(x / x.std(0)) / x.std(0), models[1].derivative(scaled) * [1.0, 1000.0]
    np.testing.assert_allclose(*slopes, rtol=1e-7)


def test_weights_count_and_the_row_itself_does_not():
    key = torch.tensor([[0.0], [1.0], [2.5], [7.0]], dtype=torch.float64)
    data = Observations(key, key, torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    assert kth_distances(key[:1], data, 3).item() == 1.0
    own = torch.arange(4)
    assert kth_distances(key, data, 2, own)[:, 0].tolist() == [1.0, 1.0, 2.5, 6.0]
    assert kth_distances(key, data, 1, own, exclude=1)[:, 0].tolist() == [2.5, 6.0, 2.5, 6.0]
    assert kth_distances(key, data, 99)[:, 0].tolist() == [7.0, 6.0, 4.5, 7.0]


def test_keys_that_coincide_with_the_query_are_pooled_alone():
    model = NadarayaWatson("epanechnikov", Nearest(2)).fit([[1.0], [1.0], [2.0]], [3.0, 5.0, 100.0])
    assert model.predict([[1.0]]) == pytest.approx(4.0)


def test_the_width_that_adapts_has_no_derivative_at_degree_0():
    x, y = wave()
    with refuses("bandwidth", "neighbours", "change", "kinks"):
        NadarayaWatson(bandwidth=Nearest(9)).fit(x, y).derivative(x)


@pytest.mark.parametrize("k", [0, 2.5, True, "best"])
def test_what_is_not_a_number_of_neighbours(k):
    with refuses("k"):
        Nearest(k)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name not in ("gaussian", "laplacian", "boxcar")])
def test_the_key_on_the_edge_does_not_count(kernel, dim):
    generator = np.random.default_rng(dim)
    x, query = generator.normal(size=(100, dim)), generator.normal(size=(300, dim))
    weights = NadarayaWatson(kernel, Nearest(5)).fit(x, x[:, 0]).weights(query)
    assert ((weights > 0).sum(-1) == 4).all()


def test_a_count_of_numpy_is_a_count():
    x, y = wave()
    assert Nearest(np.int64(7)) == Nearest(7)
    found, expected = (NadarayaWatson("gaussian", Nearest(k)).fit(x, y).predict(x) for k in (np.int32(7), 7))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("exclude", [0, 2])
@pytest.mark.parametrize("k", [1, 7, 60])
def test_weights_of_one_give_the_widths_of_unweighted_keys(k, exclude):
    key = torch.from_numpy(np.random.default_rng(0).normal(size=(53, 2)).round(1))
    own = torch.arange(53)
    plain, weighted = Observations(key, key), Observations(key, key, torch.ones(53, dtype=torch.float64))
    for rows in (None, own):
        torch.testing.assert_close(
            kth_distances(key, plain, k, rows, exclude), kth_distances(key, weighted, k, rows, exclude), rtol=0, atol=0
        )
