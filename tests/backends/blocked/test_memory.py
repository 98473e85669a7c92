"""The memory of tiles: taken once, of the dtypes asked for, long enough for the largest."""

import platform
import subprocess
import sys

import pytest
import torch

from regard.backends.blocked.memory import ALIGNMENT, TileMemory


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


CALLS = """
import resource, torch, regard
inputs = [torch.randn(2, 512, width, requires_grad=True) for width in (128, 128, 64)]
score = regard.scores.Additive.of_projected(128)
for call in range(12):
    if call == 6:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    regard.attend(*inputs, score, backend="blocked").sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 6)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another heap holds what it likes")
def test_a_call_finds_the_pages_of_the_last_one():
    """Without the piece that the heap is taught by, each of these calls waits for thousands of new pages."""
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1000
