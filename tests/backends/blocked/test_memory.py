"""The memory of tiles: taken once, of the dtypes asked for, long enough for the largest."""

import torch

import regard
from regard.backends.blocked.memory import ALIGNMENT, TileMemory, hold_pages


def test_tiles_share_their_memory_and_the_tensors_of_a_tile_do_not():
    memory = TileMemory(torch.device("cpu"), torch.float64, torch.float32)
    first = memory.at(slice(0, 3), slice(5, 9), (2,), (2, 1))
    smaller = memory.at(slice(3, 6), slice(1, 4), (2,), (2, 1))
    assert [x.dtype for x in first] == [torch.float64, torch.float32]
    assert [tuple(x.shape) for x in (*first, *smaller)] == [(2, 3, 4), (2, 1, 3, 4), (2, 3, 3), (2, 1, 3, 3)]
    assert len({x.untyped_storage().data_ptr() for x in (*first, *smaller)}) == 1
    for tile in (first, smaller):
        assert tile[0].data_ptr() + tile[0].nbytes <= tile[1].data_ptr()
        assert all(x.data_ptr() % ALIGNMENT == 0 for x in tile)
    assert all(x.is_contiguous() for x in smaller)


def test_a_stretch_that_is_too_short_grows():
    memory = TileMemory(torch.device("cpu"), torch.float32)
    memory.at(slice(0, 2), slice(0, 2), ())
    (larger,) = memory.at(slice(0, 5), slice(0, 7), (3,))
    assert larger.shape == (3, 5, 7)


def test_the_heap_is_taught_once_whatever_is_called():
    """What it then holds depends on the machine: the benchmarks tell."""
    hold_pages.cache_clear()
    tokens = torch.randn(1, 9, 4, requires_grad=True)
    for _ in range(2):
        regard.attend(tokens, tokens, tokens, "gaussian", backend="blocked").sum().backward()
    assert hold_pages.cache_info().misses == 1
