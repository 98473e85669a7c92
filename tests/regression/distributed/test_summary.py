"""Summaries of blocks join to the summary of the whole."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression.dask_arrays import merge_summaries, summarize


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
