"""Queries in a Dask array are answered lazily, in their blocks."""

# ruff: noqa: N806 (X is what scikit-learn calls it)

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression import NadarayaWatson, dask_smoother


@pytest.fixture
def query(da, on_a_line):
    return da.from_array(on_a_line.query, chunks=((13, 1, 16), (1,)))


@pytest.mark.parametrize("policy", ["nan", "mean", "nearest"])
@pytest.mark.parametrize("kernel", ["gaussian", "boxcar"])
def test_lazy_answers_are_those_of_numpy(on_a_line, query, kernel, policy):
    lazy = NadarayaWatson(kernel, 0.3, empty=policy).fit(*on_a_line.in_blocks).predict(query)
    plain = NadarayaWatson(kernel, 0.3, empty=policy).fit(on_a_line.X, on_a_line.y)
    assert lazy.chunks == (query.chunks[0], (2,))
    assert lazy.dtype == np.float64
    known = slice(None) if policy != "nan" or kernel == "gaussian" else slice(0, 20)
    np.testing.assert_allclose(lazy.compute()[known], plain.predict(on_a_line.query[known]), atol=1e-12)
    if policy == "nan" and kernel == "boxcar":
        assert np.isnan(lazy.compute()[-7:]).all()


def test_an_empty_window_fails_where_that_was_asked_for(on_a_line, query):
    lazy = NadarayaWatson("boxcar", 0.3, empty="raise").fit(*on_a_line.in_blocks).predict(query)
    with refuses("X", "observation", "bandwidth", "queries"):
        lazy.compute()


def test_nothing_is_computed_before_it_is_asked_for(da, on_a_line):
    def never(block):
        raise AssertionError("computed")

    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    lazy = model.predict(da.ones((10, 1), chunks=5).map_blocks(never, dtype=float, meta=np.empty((0, 0))))
    with pytest.raises(AssertionError, match="computed"):
        lazy.compute()


def test_a_model_in_memory_answers_lazily_too(on_a_line, query):
    model = NadarayaWatson(bandwidth=0.3, degree=1).fit(on_a_line.X, on_a_line.y[:, 0])
    np.testing.assert_allclose(model.predict(query).compute(), model.predict(on_a_line.query), atol=1e-12)
    assert model.predict(query).chunks == (query.chunks[0],)


def test_log_mass_and_unknown_lengths(da, on_a_line, query):
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    some = on_a_line.query[:, 0] > 0
    unknown = query[da.from_array(some, chunks=query.chunks[0])]
    assert np.isnan(model.log_mass(unknown).shape[0])
    np.testing.assert_allclose(model.log_mass(unknown).compute(), model.log_mass(on_a_line.query[some]), atol=1e-12)


def test_small_blocks_are_pooled_together(on_a_line, query, monkeypatch):
    monkeypatch.setattr(dask_smoother, "QUERIES_PER_BLOCK", 15)
    assert dask_smoother._joined_chunks((13, 1, 16, 3, 4, 8)) == (14, 16, 15)
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    np.testing.assert_allclose(model.predict(query).compute(), model.predict(on_a_line.query), atol=1e-13)


def test_the_score_of_lazy_predictions(on_a_line):
    X, y = on_a_line.in_blocks
    plain = NadarayaWatson(bandwidth=0.3).fit(on_a_line.X, on_a_line.y)
    ours = NadarayaWatson(bandwidth=0.3).fit(X, y).score(X, y)
    assert ours == pytest.approx(plain.score(on_a_line.X, on_a_line.y), abs=1e-12)


def test_bad_queries(da, on_a_line, query):
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    with refuses("X", "2 features", "the 1"):
        model.predict(da.ones((5, 2)))
    with refuses("X", "infinity"):
        da.compute(model.predict(query * np.nan))
    with refuses("X", "memory", "Array", "array"):
        model.pool(query)


def test_data_too_far_apart_are_refused_as_in_memory(da):
    X = 1e200 * np.random.default_rng(0).normal(size=(60, 1))
    with refuses("X", "numbers", "apart"):
        NadarayaWatson(bandwidth=1.0).fit(da.from_array(X, chunks=20), da.from_array(X[:, 0], chunks=20))


@pytest.mark.parametrize("place", [30.0, 1e10, 1e19])
def test_the_nearest_observation_answers_from_any_distance(da, place):
    x = np.linspace(0, 1, 50, dtype="f")
    lazy = da.from_array(np.column_stack([x, x]), chunks=(20, 2)), da.from_array(5 + x, chunks=20)
    model = NadarayaWatson("boxcar", 0.1, empty="nearest").fit(*lazy)
    query = np.full((1, 2), place, "f")
    for found in (model.predict(query), model.predict(da.from_array(query)).compute()):
        assert 5.4 < found[0] <= 6.0
