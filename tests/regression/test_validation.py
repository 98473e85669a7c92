"""Arrays are checked block by block and answered as they came."""

# ruff: noqa: N806 (X is what scikit-learn calls it)

import tracemalloc

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.regression.curves import wave

from regard.regression import NadarayaWatson, validation


def test_a_memory_map_is_read_block_by_block(tmp_path, monkeypatch):
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.5).fit(x, y)
    queries = np.linspace(0, 4, 1001).reshape(-1, 1)
    np.save(tmp_path / "queries.npy", queries)
    mapped = np.load(tmp_path / "queries.npy", mmap_mode="r")
    monkeypatch.setattr(validation, "QUERIES_PER_BLOCK", 64)
    blocks = list(validation.queries(model, mapped, model.smoother_.data.key))
    assert [len(block) for block in blocks] == [64] * 15 + [41]
    in_blocks = model.predict(mapped)
    monkeypatch.undo()
    np.testing.assert_allclose(in_blocks, model.predict(queries), rtol=1e-12)


def test_lists_and_tensors_are_answered_in_blocks_too(monkeypatch):
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.5).fit(x, y)
    expected = model.predict(x)
    monkeypatch.setattr(validation, "QUERIES_PER_BLOCK", 8)
    np.testing.assert_allclose(model.predict(x.tolist()), expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict(torch.tensor(x)), expected, rtol=1e-12)


def test_a_bad_block_is_found_wherever_it_is(monkeypatch):
    x, y = wave()
    model = NadarayaWatson(bandwidth=0.5).fit(x, y)
    monkeypatch.setattr(validation, "QUERIES_PER_BLOCK", 8)
    x[50] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        model.predict(x)
    with refuses("X", "infinity"):
        model.predict(torch.tensor(x))


@pytest.mark.parametrize(
    ("x", "y", "weight", "argument", "word"),
    [
        (torch.zeros(3), torch.zeros(3), None, "X", "shape (3,)"),
        (torch.zeros(3, 1), torch.zeros(4), None, "X", "of shape (3, 1) with y of shape (4,)"),
        (torch.zeros(3, 1), torch.full((3,), torch.inf), None, "y", "NaN or infinity"),
        (torch.full((3, 1), torch.nan), torch.zeros(3), None, "X", "NaN or infinity"),
        (torch.zeros(3, 1), torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]), "sample_weight", "smallest -1.0"),
        (torch.zeros(3, 1), torch.zeros(3), torch.zeros(3), "sample_weight", "zeros only"),
        (torch.zeros(3, 1), None, None, "y", "None"),
        (torch.zeros(3, 1, dtype=torch.complex64), torch.zeros(3), None, "X", "torch.complex64"),
    ],
)
def test_tensors_that_are_refused(x, y, weight, argument, word):
    with refuses(argument, word):
        NadarayaWatson(bandwidth=1.0).fit(x, y, weight)


def test_a_tensor_with_other_columns_is_refused():
    x, y = wave(dim=2)
    with refuses("X", "3 features"):
        NadarayaWatson(bandwidth=1.0).fit(x, y).predict(torch.zeros(2, 3))


@pytest.mark.parametrize(("given", "kept"), [(torch.int64, torch.float64), (torch.bfloat16, torch.float32)])
def test_other_dtypes_become_floats(given, kept):
    x = torch.arange(5).reshape(-1, 1).to(given)
    assert NadarayaWatson(bandwidth=1.0).fit(x, x[:, 0]).predict(x).dtype == kept


def test_the_answer_comes_as_the_queries_did():
    x, y = wave()
    on_arrays, on_tensors = (NadarayaWatson(bandwidth=1.0).fit(*data) for data in ((x, y), (torch.tensor(x), y)))
    assert isinstance(on_tensors.predict(x), np.ndarray)
    assert isinstance(on_arrays.predict(torch.tensor(x)), torch.Tensor)
    np.testing.assert_allclose(on_tensors.predict(x), on_arrays.predict(x), rtol=1e-12)


def test_y_that_the_dtype_of_x_cannot_hold_is_refused():
    x, y = wave()
    with refuses("y", "infinity"):
        NadarayaWatson(bandwidth=1.0).fit(x.astype(np.float32), 1e60 * y)


@pytest.mark.parametrize("size", [1e308, 3.0e307])
def test_weights_whose_sum_overflows_are_refused(size):
    with refuses("sample_weight", "weights", "finite", "number"):
        NadarayaWatson(bandwidth=1.0).fit(np.arange(7.0)[:, None], np.arange(7.0), np.full(7, size))


def test_tensors_with_a_graph_are_taken_without_it():
    x, y = (torch.from_numpy(part).requires_grad_() for part in wave())
    weight = torch.ones(len(x), dtype=x.dtype).mul_(2).requires_grad_()
    model = NadarayaWatson(bandwidth=0.5).fit(x, y, weight)
    np.testing.assert_allclose(model.predict(x.detach().numpy()), model.predict(x.detach()).numpy())
    assert 0 < model.score(x, y) < 1


def test_a_tensor_of_no_outputs_is_refused():
    x, _ = wave()
    with refuses("X", "column", "least", "both"):
        NadarayaWatson(bandwidth=0.5).fit(torch.from_numpy(x), torch.zeros(len(x), 0))


def test_a_graph_behind_y_alone_is_left_out():
    x, y = wave(20)
    observed = torch.tensor(y, requires_grad=True)
    found = NadarayaWatson(bandwidth=0.3).fit(x, observed, sample_weight=torch.ones(20, requires_grad=True))
    np.testing.assert_allclose(found.predict(x), NadarayaWatson(bandwidth=0.3).fit(x, y).predict(x))


def test_words_are_no_observations():
    x, y = wave(20)
    with refuses("y", "list"):
        NadarayaWatson(bandwidth=0.3).fit(torch.tensor(x), [str(number) for number in y])


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
