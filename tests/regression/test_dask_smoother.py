"""Fit, bandwidth and answers on Dask arrays are those of NumPy arrays."""

# ruff: noqa: N806 (X is what scikit-learn calls it)

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from tests import oracle
from tests.refuses import refuses

from regard.regression import EmptyWindowWarning, NadarayaWatson, Nearest, bandwidth_search, dask_arrays, dask_smoother
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


@pytest.mark.parametrize("rule", ["scott", "silverman"])
@pytest.mark.parametrize("kernel", ["gaussian", "tricube"])
def test_rules(observed, rule, kernel):
    ours = NadarayaWatson(kernel, rule).fit(*observed.in_blocks, observed.weight_in_blocks)
    theirs = NadarayaWatson(kernel, rule).fit(observed.X, observed.y, observed.weight)
    np.testing.assert_allclose(ours.bandwidth_, theirs.bandwidth_, rtol=1e-13)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_an_offset_costs_a_rule_no_digits(observed, rule):
    observed.X = (observed.X + 1e6).astype(np.float32)
    ours = NadarayaWatson(bandwidth=rule).fit(*observed.in_blocks)
    theirs = NadarayaWatson(bandwidth=rule).fit(observed.X, observed.y)
    np.testing.assert_allclose(ours.bandwidth_, theirs.bandwidth_, rtol=1e-6)


def test_few_rows_are_judged_as_numpy_judges_them(on_a_line):
    ours = NadarayaWatson().fit(*on_a_line.in_blocks)
    theirs = NadarayaWatson().fit(on_a_line.X, on_a_line.y)
    assert (ours.bandwidth_, ours.criterion_) == (theirs.bandwidth_, theirs.criterion_)
    np.testing.assert_allclose(ours.predict(on_a_line.query), theirs.predict(on_a_line.query), atol=1e-12)


@pytest.fixture
def few_are_judged(monkeypatch):
    monkeypatch.setattr(dask_smoother, "DRAWN_ROWS", 90)
    monkeypatch.setattr(bandwidth_search, "SCAN_ROWS", 60)


# Where copies of a row stay when one is left out, the narrowest width may be the best.
@pytest.mark.filterwarnings("ignore::regard.regression.BandwidthWarning")
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_row_is_predicted_from_all_others(on_a_line, few_are_judged, monkeypatch, kernel, weighted):
    drawn = []
    draw = dask_smoother._draw
    monkeypatch.setattr(dask_smoother, "_draw", lambda smoother: drawn.append(draw(smoother)) or drawn[0])
    weight = on_a_line.weight if weighted else np.ones_like(on_a_line.weight)
    model = NadarayaWatson(kernel).fit(*on_a_line.in_blocks, on_a_line.weight_in_blocks if weighted else None)

    kept = weight > 0
    X, y, weight = on_a_line.X[kept], on_a_line.y[kept], weight[kept]
    ends = np.cumsum([block.rows for block in model.smoother_.summaries])
    rows = np.concatenate(
        [part + end - block.rows for part, end, block in zip(drawn[0], ends, model.smoother_.summaries, strict=True)]
    )
    assert len(rows) == len(set(rows)) == 90
    expected, alone = criterion(kernel, X, y, weight, rows, model.bandwidth_)
    assert model.criterion_ == pytest.approx(expected, rel=1e-10)
    assert model.loo_alone_ == alone
    assert model.criterion_ == model.trials_.values.min()
    assert model.smoother_.without is None


def criterion(kernel, X, y, weight, rows, bandwidth):
    """The formula in loops: row i of weight w leaves out min(w, 1) of itself."""
    errors, alone = [], 0
    for i in rows:
        rest = weight.copy()
        rest[i] -= min(weight[i], 1)
        mass = rest * [oracle.KERNELS[kernel](abs(X[i, 0] - x) / bandwidth) for x in X[:, 0]]
        if mass.sum() == 0:
            mass, alone = rest, alone + 1
        errors.append(np.mean((y[i] - mass @ y / mass.sum()) ** 2))
    return np.average(errors, weights=weight[rows]), alone


def test_several_dimensions_and_what_is_said(few_are_judged, observed, capsys):
    model = NadarayaWatson(verbose=1).fit(*observed.in_blocks)
    assert "loo uses 90 rows of 311, each predicted from all others" in capsys.readouterr().out
    theirs = NadarayaWatson().fit(observed.X, observed.y)
    assert np.shape(model.bandwidth_) == np.shape(theirs.bandwidth_)
    np.testing.assert_allclose(model.bandwidth_, theirs.bandwidth_, rtol=0.5)
    assert model.smoother_.width is not theirs.smoother_.width


@pytest.mark.parametrize(
    ("arguments", "argument", "word"),
    [
        ({"bandwidth": "aicc"}, "bandwidth", "'aicc'"),
        ({"bandwidth": Nearest(5)}, "bandwidth", "Nearest"),
        ({"bandwidth": "loo", "exclude": 3}, "bandwidth", "exclude=3"),
        ({"bandwidth": "loo", "per_dimension": True}, "bandwidth", "per_dimension=True"),
        ({"bandwidth": -1.0}, "bandwidth", "-1.0"),
        ({"bandwidth": "wide"}, "bandwidth", "'wide'"),
        ({"kernel": "parabola"}, "kernel", "'parabola'"),
    ],
)
def test_what_is_refused(on_a_line, arguments, argument, word):
    with refuses(argument, word):
        NadarayaWatson(**arguments).fit(*on_a_line.in_blocks)


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
