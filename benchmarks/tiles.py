"""Time each tile of the kernels of distances on a GPU: `python -m benchmarks.tiles`.

The tiles in `regard/backends/triton/distance` are chosen from these times.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from unittest import mock

import torch

import regard
from benchmarks.measure import recorded
from regard.backends.triton.distance import narrow, tiled_backward, tiled_forward
from regard.backends.triton.launch import Tile

PASSES, CALLS = 7, 5
NARROW_FORWARD = [
    Tile(256, 64, 4), Tile(256, 32, 4), Tile(512, 32, 4), Tile(512, 16, 4), Tile(128, 64, 4), Tile(128, 32, 4)
]  # fmt: skip
NARROW_BACKWARD = [Tile(256, 8, 4), Tile(256, 16, 4), Tile(128, 16, 4), Tile(512, 8, 4)]
PRODUCT_FORWARD = [
    Tile(128, 64, 8, 2),
    Tile(128, 32, 8, 3),
    Tile(128, 64, 8, 1),
    Tile(64, 32, 4, 2),
    Tile(64, 64, 4, 2),
]
DIFFERENCE_FORWARD = [Tile(64, 64, 4, 1), Tile(128, 64, 8, 1), Tile(64, 32, 4, 1)]
DIFFERENCE_QUERIES = [Tile(64, 32, 4, 2), Tile(64, 32, 4, 1), Tile(64, 64, 4, 1), Tile(64, 16, 4, 2)]
DIFFERENCE_KEYS = [Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 64, 4, 1), Tile(16, 64, 4, 2)]
PRODUCT_QUERIES = [Tile(128, 32, 8, 2), Tile(128, 64, 8, 1), Tile(64, 64, 4, 1), Tile(64, 32, 4, 2)]
PRODUCT_KEYS = [Tile(64, 128, 8, 1), Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 64, 4, 1)]
KERNELS = {"gaussian": regard.scores.Gaussian, "laplacian": regard.scores.Laplacian}

Build = Callable[[], Callable[[], object]]
Table = Tile | tuple[Tile, ...] | dict[int, Tile]


def main() -> None:
    """Print the milliseconds of a call for each tile of each table."""
    time_tiles(narrow, "FORWARD_TILES", NARROW_FORWARD, partial(forward, (300_000, 3, 1, 1.0), "gaussian"))
    time_tiles(narrow, "BACKWARD_TILES", NARROW_BACKWARD, partial(backward, (100_000, 3, 1, 1.0), "gaussian"))
    for dim in (32, 64, 128):
        size, batch = (4096, dim, dim, dim**0.25), (8,)
        for module, table, tiles, build, score in (
            (tiled_forward, "PRODUCT_TILES", PRODUCT_FORWARD, forward, "gaussian"),
            (tiled_backward, "PRODUCT_QUERY_TILES", PRODUCT_QUERIES, backward, "gaussian"),
            (tiled_backward, "PRODUCT_KEY_TILES", PRODUCT_KEYS, backward, "gaussian"),
            (tiled_backward, "DIFFERENCE_QUERY_TILES", DIFFERENCE_QUERIES, backward, "laplacian"),
            (tiled_backward, "DIFFERENCE_KEY_TILES", DIFFERENCE_KEYS, backward, "laplacian"),
            (tiled_forward, "DIFFERENCE_TILE", DIFFERENCE_FORWARD, forward, "laplacian"),
        ):
            time_tiles(module, table, tiles, partial(build, size, score, batch), f" {dim}")


def time_tiles(module: ModuleType, table: str, tiles: Sequence[Tile], build: Build, title: str = "") -> None:
    """Time a call with each tile in place of all tiles of a table.

    Args:
        module: a module with kernels.
        table: name of the table.
        tiles: the tiles.
        build: returns the call.
        title: printed after the name of the table.
    """
    for tile in tiles:
        with mock.patch.object(module, table, filled(getattr(module, table), tile)):
            try:
                took = f"{milliseconds(build()):.3f} ms"
            except Exception as error:  # a tile may need more memory than a multiprocessor has
                took = type(error).__name__
        print(f"{module.__name__.rpartition('.')[2]}.{table}{title}", tuple(tile), took, flush=True)


def filled(table: Table, tile: Tile) -> Table:
    """Return a table of the same kind with one tile only."""
    if isinstance(table, dict):
        return dict.fromkeys(table, tile)
    return tile if isinstance(table, Tile) else (tile,)


def forward(size: tuple, score: str, batch: tuple = ()) -> Callable[[], object]:
    """Return a call of `attend`; size: tokens, dimensions, values, bandwidth."""
    tokens, dim, value_dim, bandwidth = size
    inputs = [torch.randn(*batch, tokens, n, device="cuda") for n in (dim, dim, value_dim)]
    kernel = KERNELS[score](bandwidth)
    return recorded(lambda: regard.attend(*inputs, kernel, backend="triton"))


def backward(size: tuple, score: str, batch: tuple = ()) -> Callable[[], object]:
    """Return a call of `attend` and of its backward pass; size: tokens, dimensions, values, bandwidth."""
    tokens, dim, value_dim, bandwidth = size
    inputs = [torch.randn(*batch, tokens, n, device="cuda", requires_grad=True) for n in (dim, dim, value_dim)]
    kernel = KERNELS[score](bandwidth)
    return recorded(lambda: torch.autograd.grad(regard.attend(*inputs, kernel, backend="triton").sum(), inputs))


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median of some passes, measured by events on the GPU."""
    call()
    times = []
    for _ in range(PASSES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times)


if __name__ == "__main__":
    main()
