"""The memory of tiles: taken once, of the dtypes asked for, long enough for the largest."""

import torch

from regard.backends.blocked.memory import ALIGNMENT, TileMemory


def test_tiles_share_their_memory_and_the_tensors_of_a_tile_do_not():
    memory = TileMemory(torch.device("cpu"), torch.float64, torch.float32)
    first = memory.at((2, 3, 4), (2, 1, 3, 4))
    smaller = memory.at((2, 3, 3), (2, 1, 3, 3))
    assert [x.dtype for x in first] == [torch.float64, torch.float32]
    assert [tuple(x.shape) for x in (*first, *smaller)] == [(2, 3, 4), (2, 1, 3, 4), (2, 3, 3), (2, 1, 3, 3)]
    assert len({x.untyped_storage().data_ptr() for x in (*first, *smaller)}) == 1
    for tile in (first, smaller):
        assert tile[0].data_ptr() + tile[0].nbytes <= tile[1].data_ptr()
        assert all(x.data_ptr() % ALIGNMENT == 0 for x in tile)
    assert all(x.is_contiguous() for x in smaller)


def test_a_stretch_that_is_too_short_grows():
    memory = TileMemory(torch.device("cpu"), torch.float32)
    memory.at((2, 2))
    (larger,) = memory.at((3, 5, 7))
    assert larger.shape == (3, 5, 7)


def test_a_tile_may_ask_for_the_first_of_its_tensors_alone():
    memory = TileMemory(torch.device("cpu"), torch.float32, torch.float64)
    (alone,) = memory.at((3, 5))
    assert alone.dtype == torch.float32
    assert memory.stretch.nbytes == ALIGNMENT
