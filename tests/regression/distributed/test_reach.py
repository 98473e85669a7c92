"""A block is left out only where it holds nothing that counts."""

# ruff: noqa: N803 (X is what scikit-learn calls it)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle

from regard.regression.dask_arrays import QueryBlock, can_contribute, lower_bound, summarize
from regard.scores.names import KERNEL_SCORES


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
