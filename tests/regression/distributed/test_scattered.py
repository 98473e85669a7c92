"""Fit and predict on Dask arrays give what NumPy arrays give, on a cluster and on threads."""

# ruff: noqa: N806 (X is what scikit-learn calls it)

import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.regression import EmptyWindowWarning, NadarayaWatson, dask_arrays, dask_smoother
from regard.regression.dask_smoother import DaskSmoother


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar", "epanechnikov"])
@pytest.mark.parametrize("weighted", [False, True])
def test_predictions_are_those_of_numpy(observed, kernel, weighted):
    ours = NadarayaWatson(kernel, 0.4, empty="nearest").fit(
        *observed.in_blocks, observed.weight_in_blocks if weighted else None
    )
    theirs = NadarayaWatson(kernel, 0.4, empty="nearest").fit(
        observed.X, observed.y, observed.weight if weighted else None
    )
    np.testing.assert_allclose(ours.predict(observed.query), theirs.predict(observed.query), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.log_mass(observed.query), theirs.log_mass(observed.query), rtol=1e-13, atol=1e-12)
    assert ours.bandwidth_ == 0.4
    assert ours.n_features_in_ == observed.X.shape[1]


def test_one_width_per_dimension_and_one_output(da):
    random = np.random.default_rng(1)
    X, y = random.normal(size=(90, 2)), random.normal(size=90)
    model = NadarayaWatson(bandwidth=[0.3, 2.0])
    ours = model.fit(da.from_array(X, chunks=(20, 2)), da.from_array(y, chunks=20)).predict(X)
    np.testing.assert_allclose(ours, model.fit(X, y).predict(X), atol=1e-13)
    assert ours.shape == (90,)


def test_on_a_cluster(da, cluster, on_a_line):
    def table(block_info=None):
        start, stop = block_info[None]["array-location"][0]
        whole = np.arange(start, stop)
        return np.stack([whole / 7, np.sin(whole), np.full(stop - start, float(os.getpid()))], 1)

    made = da.map_blocks(table, chunks=((100,) * 6, (3,)), dtype=float, meta=np.empty((0, 0)))
    with cluster.as_current():
        model = NadarayaWatson("epanechnikov", 0.5).fit(made[:, :1], made[:, 1:])
        answer = model.predict(on_a_line.query + 10)
        lazy = model.predict(da.from_array(on_a_line.query + 10, chunks=(11, 1))).compute()
        threads = cluster.run(torch.get_num_threads)
    plain = NadarayaWatson("epanechnikov", 0.5).fit(np.arange(600).reshape(-1, 1) / 7, np.sin(np.arange(600)))
    np.testing.assert_allclose(answer[:, 0], plain.predict(on_a_line.query + 10), atol=1e-13)
    np.testing.assert_allclose(lazy[:, 0], answer[:, 0], atol=1e-13)
    # Each block was made where it was pooled: the mean of two process numbers, neither of them ours.
    workers = set(cluster.run(os.getpid).values())
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert (answer[:, 1] >= min(workers) - 1e-6).all()
    assert (answer[:, 1] <= max(workers) + 1e-6).all()
    assert set(threads.values()) == {1}


def test_the_data_are_never_all_there(da):
    import dask

    rows, blocks = 20_000, 40

    def table(block_info=None):
        start, stop = block_info[None]["array-location"][0]
        return np.arange(start, stop, dtype=float).reshape(-1, 1) % 977

    X = da.map_blocks(table, chunks=((rows,) * blocks, (1,)), dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="synchronous"):
        tracemalloc.start()
        model = NadarayaWatson("epanechnikov", 3.0).fit(X, X[:, 0])
        found = model.predict([[500.0]])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    np.testing.assert_allclose(found, [500.0])
    assert peak < X.nbytes / 3


def test_empty_windows(on_a_line):
    X, y = on_a_line.in_blocks
    far = [[0.0], [50.0]]
    model = NadarayaWatson("boxcar", 0.2).fit(X, y)
    with pytest.warns(EmptyWindowWarning, match="1 of 2 queries"):
        assert np.isnan(model.predict(far)[1]).all()
    np.testing.assert_allclose(model.set_params(empty="mean").predict(far)[1], on_a_line.y.mean(0))
    nearest = on_a_line.y[on_a_line.X[:, 0].argmax()]
    np.testing.assert_allclose(model.set_params(empty="nearest").predict(far)[1], nearest)
    with refuses("X", "1 of", "2 queries have"):
        model.set_params(empty="raise").predict(far)


def test_queries_are_sent_in_batches(on_a_line, monkeypatch):
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    whole, sent = model.predict(on_a_line.query), []
    monkeypatch.setattr(dask_smoother, "NUMBERS_SENT", 14)
    ask = dask_arrays.prepare_queries
    monkeypatch.setattr(
        dask_arrays, "prepare_queries", lambda query, *rest: sent.append(len(query)) or ask(query, *rest)
    )
    np.testing.assert_allclose(model.predict(on_a_line.query), whole, atol=1e-13)
    assert sent == [7, 7, 7, 7, 2]


def test_what_needs_all_observations_is_refused(on_a_line):
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    for ask in (model.weights, model.derivative, model.confidence_band):
        with refuses("X", "observations", "arrays", "fitted"):
            ask(on_a_line.query)
    with refuses("degree", "local", "means"):
        NadarayaWatson(bandwidth=0.3, degree=1).fit(*on_a_line.in_blocks)


def test_a_pickled_model_still_answers(on_a_line):
    model = NadarayaWatson(bandwidth=0.3).fit(*on_a_line.in_blocks)
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again.smoother_, DaskSmoother)
    np.testing.assert_array_equal(again.predict(on_a_line.query), model.predict(on_a_line.query))


def test_pools_join_with_others(on_a_line):
    X, y = on_a_line.in_blocks
    pooled = NadarayaWatson(bandwidth=0.3).fit(X, y).pool(on_a_line.query)
    plain = NadarayaWatson(bandwidth=0.3).fit(on_a_line.X, on_a_line.y).pool(on_a_line.query)
    np.testing.assert_allclose(pooled.mean, plain.mean, atol=1e-12)
    np.testing.assert_allclose(pooled.log_mass, plain.log_mass, rtol=1e-14, atol=1e-12)
