"""Which tiles are fastest on this GPU: `python -m benchmarks.tiles`, from which fused/configurations.py is chosen."""

import statistics
from collections.abc import Callable, Sequence
from unittest import mock

import torch

import regard
from benchmarks.measure import recorded
from regard.backends.fused import configurations as tables
from regard.backends.fused.configurations import Tile

PASSES, CALLS = 7, 5
NARROW = [Tile(256, 64, 4), Tile(256, 32, 4), Tile(512, 32, 4), Tile(512, 16, 4), Tile(128, 64, 4), Tile(128, 32, 4)]
NARROW_BACKWARD = [Tile(256, 8, 4), Tile(256, 16, 4), Tile(128, 16, 4), Tile(512, 8, 4)]
PRODUCT = [Tile(128, 64, 8, 2), Tile(128, 32, 8, 3), Tile(128, 64, 8, 1), Tile(64, 32, 4, 2), Tile(64, 64, 4, 2)]
EXACT = [Tile(64, 64, 4, 1), Tile(128, 64, 8, 1), Tile(64, 32, 4, 1)]
WIDE_ROWS = [Tile(64, 32, 4, 2), Tile(64, 32, 4, 1), Tile(64, 64, 4, 1), Tile(64, 16, 4, 2)]
WIDE_COLUMNS = [Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 64, 4, 1), Tile(16, 64, 4, 2)]
PRODUCT_ROWS = [Tile(128, 32, 8, 2), Tile(128, 64, 8, 1), Tile(64, 64, 4, 1), Tile(64, 32, 4, 2)]
PRODUCT_COLUMNS = [Tile(64, 128, 8, 1), Tile(32, 64, 4, 2), Tile(32, 64, 4, 1), Tile(64, 64, 4, 1)]
KERNELS = {"gaussian": regard.scores.Gaussian, "laplacian": regard.scores.Laplacian}

Build = Callable[[], Callable[[], object]]


def main() -> None:
    """Print the milliseconds of each tile of each table."""
    low = (100_000, 3, 1, 1.0)
    sweep("NARROW", NARROW, lambda tile: (tile,), lambda: forward((300_000, 3, 1, 1.0), "gaussian"))
    sweep("NARROW_BACKWARD", NARROW_BACKWARD, lambda tile: (tile,), lambda: backward(low, ()))
    for dim in (32, 64, 128):
        size, batch = (4096, dim, dim, dim**0.25), (8,)
        at = dict.fromkeys((32, 64, 128))

        def whole(tile: Tile, at: dict = at) -> dict:
            return dict.fromkeys(at, tile)

        sweep(f"PRODUCT {dim}", PRODUCT, whole, lambda size=size, batch=batch: forward(size, "gaussian", batch))
        for table, tiles in (("PRODUCT_ROWS", PRODUCT_ROWS), ("PRODUCT_COLUMNS", PRODUCT_COLUMNS)):
            sweep(f"{table} {dim}", tiles, whole, lambda size=size, batch=batch: backward(size, batch))
        for table, tiles in (("WIDE_ROWS", WIDE_ROWS), ("WIDE_COLUMNS", WIDE_COLUMNS)):
            sweep(f"{table} {dim}", tiles, whole, lambda size=size, batch=batch: backward(size, batch, "laplacian"))
        sweep(
            f"EXACT {dim}", EXACT, lambda tile: tile, lambda size=size, batch=batch: forward(size, "laplacian", batch)
        )


def sweep(title: str, tiles: Sequence[Tile], table: Callable, build: Build) -> None:
    """Time one call with each tile in its table."""
    for tile in tiles:
        with mock.patch.object(tables, title.split()[0], table(tile)):
            try:
                print(title, tuple(tile), f"{milliseconds(build()):.3f} ms", flush=True)
            except Exception as error:  # a tile may need more memory than a multiprocessor has
                print(title, tuple(tile), type(error).__name__, flush=True)


def forward(size: tuple, score: str, batch: tuple = ()) -> Callable[[], object]:
    """A call of `attend` on `size`: tokens, dimensions, values, bandwidth."""
    tokens, dim, value_dim, bandwidth = size
    shapes = (dim, dim, value_dim)
    drawn = [torch.randn(*batch, tokens, width, device="cuda") for width in shapes]
    kernel = KERNELS[score](bandwidth)
    return recorded(lambda: regard.attend(*drawn, kernel, backend="triton"))


def backward(size: tuple, batch: tuple, score: str = "gaussian") -> Callable[[], object]:
    """Such a call in both directions."""
    tokens, dim, value_dim, bandwidth = size
    drawn = [torch.randn(*batch, tokens, n, device="cuda", requires_grad=True) for n in (dim, dim, value_dim)]
    kernel = KERNELS[score](bandwidth)
    return recorded(lambda: torch.autograd.grad(regard.attend(*drawn, kernel, backend="triton").sum(), drawn))


def milliseconds(call: Callable[[], object]) -> float:
    """The median of some passes, by the GPU's own clock."""
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
