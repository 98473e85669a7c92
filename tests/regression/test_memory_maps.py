"""Memory maps: queries are read block by block, and observations are copied once."""

# ruff: noqa: N806 (X is what scikit-learn calls it)

import tracemalloc

import numpy as np
import pytest

from regard.regression import NadarayaWatson, validation


def mapped(path, array):
    written = np.memmap(path, dtype=array.dtype, mode="w+", shape=array.shape)
    written[:] = array
    written.flush()
    return np.memmap(path, dtype=array.dtype, mode="r", shape=array.shape)


@pytest.fixture
def model():
    X = np.linspace(0, 1, 50).reshape(-1, 1)
    return NadarayaWatson("boxcar", 0.1).fit(X, np.sin(X[:, 0]))


@pytest.fixture
def queries(tmp_path):
    return mapped(tmp_path / "queries", np.random.default_rng(0).uniform(size=(2**18, 1)))


def test_queries_are_read_block_by_block(model, queries, monkeypatch):
    whole = model.predict(np.array(queries))
    monkeypatch.setattr(validation, "QUERIES_PER_BLOCK", 2**13)
    tracemalloc.start()
    streamed = model.predict(queries)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(streamed, whole, atol=1e-13)
    assert peak < queries.nbytes / 4


def test_queries_of_a_map_in_blocks_of_dask(da, model, queries):
    lazy = model.predict(da.from_array(queries, chunks=(2**16, 1)))
    np.testing.assert_allclose(lazy.compute(), model.predict(queries), atol=1e-13)


def test_observations_are_copied_once(tmp_path):
    X = mapped(tmp_path / "X", np.random.default_rng(1).uniform(size=(2**18, 1)))
    y = mapped(tmp_path / "y", np.sin(X[:, 0]))
    tracemalloc.start()
    model = NadarayaWatson("boxcar", 1e-3).fit(X, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Tensors are not traced: what NumPy holds is the way from the file to them, and the order of the sorted rows.
    order = len(X) * np.dtype(np.int64).itemsize
    assert peak < 1.2 * (X.nbytes + y.nbytes) + order
    assert model.predict([[0.5]]) == pytest.approx(np.sin(0.5), abs=1e-3)
