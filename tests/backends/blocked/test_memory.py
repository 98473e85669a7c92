"""The memory of tiles: one set for each shape, of the dtypes asked for."""

import torch

from regard.backends.blocked.memory import TileMemory


def test_tiles_of_one_shape_share_their_memory_and_others_do_not():
    memory = TileMemory(torch.Size((2,)), torch.device("cpu"), torch.float64, torch.float32)
    first, again = memory.at(slice(0, 3), slice(5, 9)), memory.at(slice(3, 6), slice(1, 5))
    other = memory.at(slice(0, 3), slice(5, 8))
    assert [x.dtype for x in first] == [torch.float64, torch.float32]
    assert [tuple(x.shape) for x in (*first, *other)] == [(2, 3, 4), (2, 3, 4), (2, 3, 3), (2, 3, 3)]
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in again]
    assert len({x.data_ptr() for x in (*first, *other)}) == 4
