"""Any split of the data gives what the whole gives."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.regression.sums.exact import Kernel, pool_any

from regard.regression import dask_arrays
from regard.regression.dask_arrays import summarize
from regard.regression.sums import Observations
from regard.scores.names import KERNEL_SCORES


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
