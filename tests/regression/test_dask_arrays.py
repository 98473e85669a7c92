"""Dask blocks are aligned and summarised, and any split of the data gives what the whole gives."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

# ruff: noqa: N803 (X is what scikit-learn calls it)

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.refuses import refuses
from tests.regression.sums.exact import Kernel, pool_any

from regard.regression import NadarayaWatsonClassifier, dask_arrays
from regard.regression.dask_arrays import (
    QueryBlock,
    align,
    can_contribute,
    import_dask,
    lower_bound,
    merge_summaries,
    summarize,
)
from regard.regression.sums import Observations
from regard.regression.validation import is_dask
from regard.scores.names import KERNEL_SCORES


def unknown(da, array):
    """The same rows in blocks whose lengths nobody knows."""
    return array[da.from_array(np.ones(len(array), dtype=bool), chunks=array.chunks[0])]


def test_blocks_follow_those_of_x(da):
    X, y = da.ones((10, 3), chunks=(4, 2)), da.arange(10.0, chunks=3)
    blocks = align(X, y, da.ones(10, chunks=10))
    assert [part.compute().shape for part in blocks.X] == [(4, 3), (4, 3), (2, 3)]
    assert [part.compute().tolist() for part in blocks.y] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(part.compute()) for part in blocks.weight] == [4, 4, 2]
    assert (blocks.dim, blocks.one_output, blocks.dtype) == (3, True, np.float64)


def test_what_x_and_y_share_is_read_once(da):
    read = []

    def table(block_info=None):
        read.append(block_info[None]["chunk-location"])
        return np.ones((5, 3))

    whole = da.map_blocks(table, chunks=((5, 5), (3,)), dtype=float, meta=np.empty((0, 0)))
    blocks = align(whole[:, :2], whole[:, 2], None)
    with import_dask().config.set(scheduler="synchronous"):
        import_dask().compute(blocks.X, blocks.y)
    assert sorted(read) == [(0, 0), (1, 0)]


def test_unknown_lengths_are_paired(da):
    blocks = align(unknown(da, da.ones((10, 1), chunks=4)), unknown(da, da.arange(10, chunks=4)), None)
    assert [len(part.compute()) for part in blocks.X] == [4, 4, 2]


@pytest.mark.parametrize(
    ("X", "y", "argument", "word"),
    [
        (lambda da: da.ones((10, 1)), lambda da: da.ones(9), "y", "9 rows for X with 10 rows"),
        (
            lambda da: unknown(da, da.ones((10, 1), chunks=5)),
            lambda da: da.ones(10, chunks=10),
            "y",
            "2 blocks of unknown length",
        ),
        (lambda da: da.ones((10, 1)), lambda da: np.ones(10), "y", "ndarray"),
        (lambda da: da.ones(10), lambda da: da.ones(10), "X", "1 axes"),
        (lambda da: da.ones((10, 1), chunks=5, dtype=object), lambda da: da.ones(10), "X", "2 axes of object"),
        (lambda da: da.ones((10, 0)), lambda da: da.ones(10), "X", "shape (10, 0)"),
    ],
)
def test_what_cannot_agree_is_refused(da, X, y, argument, word):
    with refuses(argument, word):
        align(X(da), y(da), None)


def test_only_collections_of_dask_are_dask(da):
    assert is_dask(da.ones(3))
    assert not is_dask(np.ones(3))
    assert not is_dask(None)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with refuses("X", '"regard[distributed]"'):
        import_dask()


def test_a_classifier_does_not_collect(da):
    with refuses("X", "memory", "Array", "array"):
        NadarayaWatsonClassifier(bandwidth=1.0).fit(da.ones((4, 1)), np.arange(4))


def test_blocks_join_to_the_whole():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(50, 2)) + 1e6, random.normal(size=(50, 3))
    weight = random.integers(0, 3, 50).astype(float)
    parts = [summarize(X[s], y[s], weight[s]) for s in (slice(0, 7), slice(7, 7), slice(7, 31), slice(31, 50))]
    total, kept = merge_summaries(parts), weight > 0
    assert total.rows == kept.sum()
    assert total.weight == weight.sum()
    assert total.lightest == 1
    assert (total.low == X[kept].min(0)).all()
    assert (total.high == X[kept].max(0)).all()
    mean = np.average(X, 0, weight)
    np.testing.assert_allclose(total.key, mean, rtol=1e-15)
    np.testing.assert_allclose(total.value, np.average(y, 0, weight), rtol=1e-13)
    np.testing.assert_allclose(total.variance, np.average((X - mean) ** 2, 0, weight), rtol=1e-8)


@pytest.mark.parametrize(
    ("argument", "X", "y", "weight", "word"),
    [
        ("X", [[1.0], [np.nan]], [1.0, 2.0], None, "NaN or infinity"),
        ("y", [[1.0], [2.0]], [1.0, np.inf], None, "NaN or infinity"),
        ("sample_weight", [[1.0], [2.0]], [1.0, 2.0], [1.0, -2.0], "-2"),
        ("y", [[1.0], [2.0]], [1.0], None, "2 rows of X, 1 of y and 2 weights"),
    ],
)
def test_a_block_that_cannot_be_used(argument, X, y, weight, word):
    with refuses(argument, word):
        summarize(np.array(X), np.array(y), None if weight is None else np.array(weight))


def test_nothing_at_all():
    with refuses("X", "positive", "weight"):
        merge_summaries([summarize(np.ones((2, 1)), np.ones(2), np.zeros(2))])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.bool_, np.int8, np.float16])
def test_numbers_of_every_kind_are_summed_up_in_float64(dtype):
    random = np.random.default_rng(0)
    X, y = (random.integers(0, 2 if dtype is np.bool_ else 100, size=(50, 1)).astype(dtype) for _ in range(2))
    found, exact = summarize(X, y, None), summarize(X.astype(np.float64), y.astype(np.float64), None)
    for name, part in exact._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), part, err_msg=name)


def test_where_x_is_float32_so_are_values_and_weights():
    X, y = np.arange(4, dtype=np.float32)[:, None], np.arange(4.0)
    assert summarize(X, y, np.array([1.0, 1e-60, 1.0, 1.0])).rows == 3
    with refuses("y", "infinity", "numbers", "finite"):
        summarize(X, 1e60 * y, None)


def block(X):
    return summarize(X, X[:, :1], None)


# The oracle's own logarithm is that of a kernel which has underflowed to 0.
FAR_REACHING = {"gaussian": lambda d: -(d**2) / 2, "laplacian": lambda d: -d}


def log_mass(name, query, X, width):
    def score(q, k):
        far = FAR_REACHING.get(name)
        return far(oracle.distance(q, k, width)) if far else oracle.log_kernel(name, q, k, width)

    return np.array([np.logaddexp.reduce([score(q, k) for k in X]) for q in query])


@pytest.mark.parametrize("name", KERNEL_SCORES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), dim=st.sampled_from([1, 2, 3]), width=st.floats(0.01, 10))
def test_what_is_left_out_has_no_mass(name, seed, dim, width):
    random = np.random.default_rng(seed)
    here, there = random.normal(size=(4, dim)), random.normal(size=(4, dim)) + random.uniform(0, 50, size=dim)
    query = random.normal(size=(7, dim)) * 10
    floor = lower_bound(query, [block(here), block(there)], name, width)
    ours, theirs = (log_mass(name, query, X, width) for X in (here, there))
    assert (floor <= np.logaddexp(ours, theirs) + 1e-9).all()
    unseen = ~can_contribute(QueryBlock(query, floor), block(there), name, width)
    assert (theirs[unseen] <= np.where(np.isneginf(ours), 0.0, ours)[unseen] - 745).all()


@pytest.mark.parametrize(("name", "far"), [("boxcar", 2.1), ("epanechnikov", 2.1), ("gaussian", 60.0)])
def test_a_block_that_is_too_far_is_left_out(name, far):
    near, away = block(np.array([[0.0], [1.0]])), block(np.array([[far], [far + 1]]))
    query = np.array([[0.5], [1.2]])
    queries = QueryBlock(query, lower_bound(query, [near, away], name, 1.0))
    assert can_contribute(queries, near, name, 1.0).tolist() == [True, True]
    assert can_contribute(queries, away, name, 1.0).tolist() == [False, far < 3]


def test_a_gaussian_is_never_out_of_reach_of_everything():
    alone, query = block(np.array([[0.0], [1.0]])), np.array([[1e200]])
    queries = QueryBlock(query, lower_bound(query, [alone], "gaussian", 1e-200))
    assert can_contribute(queries, alone, "gaussian", 1e-200).all()


def test_a_block_without_rows_matters_to_nobody():
    nothing = summarize(np.empty((0, 1)), np.empty(0), None)
    query = np.zeros((3, 1))
    floor = lower_bound(query, [nothing], "gaussian", 1.0)
    assert np.isneginf(floor).all()
    assert not can_contribute(QueryBlock(query, floor), nothing, "gaussian", 1.0).any()


def pooled_by_parts(query, X, y, weight, kernel, cuts):
    """Pool over the blocks between the cuts, and join them two by two."""
    blocks = [
        dask_arrays.Block(X[start:stop], y[start:stop], None if weight is None else weight[start:stop])
        for start, stop in zip([0, *cuts], [*cuts, len(X)], strict=True)
    ]
    summaries = [summarize(*block[:3]) for block in blocks]
    asked = dask_arrays.prepare_queries(query, summaries, *kernel, query.dtype)
    parts = [dask_arrays.pool_block(asked, *pair, *kernel, None) for pair in zip(blocks, summaries, strict=True)]
    while len(parts) > 1:
        parts = [dask_arrays.merge_pools(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


@pytest.mark.parametrize("name", KERNEL_SCORES)
@settings(max_examples=10)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=5).map(sorted),
    dim=st.sampled_from([1, 2]),
    ordered=st.booleans(),
    weighted=st.booleans(),
    width=st.sampled_from([1e-3, 0.3, 5.0]),
)
def test_every_split_gives_the_same(name, cuts, dim, ordered, weighted, width):
    random = np.random.default_rng(3)
    X = random.uniform(-4, 4, size=(60, dim))
    if ordered:
        X = X[np.argsort(X[:, 0])]
    y = random.normal(size=(60, 2))
    weight = random.integers(0, 3, 60).astype(float) if weighted else None
    query = np.concatenate([X[::7], random.uniform(-5, 5, size=(20, dim)), [[12.0] * dim, [-900.0] * dim]])
    kernel = Kernel(name, width)

    part = pooled_by_parts(query, X, y, weight, kernel, cuts)

    kept = slice(None) if weight is None else weight > 0
    data = Observations(*(None if a is None else torch.tensor(a[kept]) for a in (X, y, weight)))
    whole = pool_any(torch.tensor(query), data, kernel)
    log_mass = part.log_mass
    assert np.array_equal(np.isneginf(log_mass), whole.log_mass.isneginf().numpy())
    seen = ~np.isneginf(log_mass)
    np.testing.assert_allclose(log_mass[seen], whole.log_mass.numpy()[seen], rtol=1e-14, atol=1e-12)
    # Far away the logarithms of masses keep few digits of their ratios.
    near = ~seen | (log_mass > -1024)
    np.testing.assert_allclose(part.mean[near], whole.mean.numpy()[near], rtol=0, atol=1e-12)


def tied_far_away(kernel):
    """A query 1e3 widths away from keys that all coincide: its answer is their weighted mean, whatever the kernel."""
    X = np.zeros((7, 1))
    y = np.array([1.0, 5.0, -2.0, 8.0, 1.0, 0.0, 3.0]).reshape(-1, 1)
    weight = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0])
    part = pooled_by_parts(np.array([[1e3]]), X, y, weight, kernel, [2, 3])
    return abs(part.mean[0, 0] - np.average(y[:, 0], weights=weight))


@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
def test_ties_far_away_count_by_their_weight(name):
    assert tied_far_away(Kernel(name, 1.0)) < 1e-9


def test_float32_stays_float32():
    random = np.random.default_rng(3)
    X, y = random.normal(size=(50, 2)).astype(np.float32), random.normal(size=(50, 1)).astype(np.float32)
    part = pooled_by_parts(X[:9], X, y, None, Kernel("gaussian", 0.5), [20])
    whole = pool_any(torch.tensor(X[:9]), Observations(torch.tensor(X), torch.tensor(y)), Kernel("gaussian", 0.5))
    assert part.mean.dtype == np.float32
    np.testing.assert_allclose(part.mean, whole.mean.numpy(), atol=4e-6)


def test_rows_are_taken_and_left_out_by_their_position_among_positive_weights():
    block = dask_arrays.Block(np.arange(6.0).reshape(-1, 1), np.arange(6.0), np.array([1.0, 0, 2, 0, 3, 4]))
    key, value, weight = dask_arrays.take_rows(block, np.array([1, 2]), np.dtype(float))
    assert key[:, 0].tolist() == [2, 4]
    assert value[:, 0].tolist() == [2, 4]
    assert weight.tolist() == [2, 3]
    left = dask_arrays.load_block(block._replace(without=np.array([1, 2])), np.dtype(float))
    assert left.key[:, 0].tolist() == [0, 5]


def test_a_query_that_is_no_number_is_refused():
    with refuses("X", "infinity"):
        dask_arrays.prepare_queries(np.array([[np.nan]]), [], "gaussian", 1.0, np.dtype(float))
