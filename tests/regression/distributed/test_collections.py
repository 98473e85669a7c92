"""Blocks of X, y and weights are made to agree, or refused with the repair."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import sys

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression import NadarayaWatsonClassifier
from regard.regression.dask_arrays import align, import_dask
from regard.regression.validation import is_dask


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
