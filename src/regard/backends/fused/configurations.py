"""The sizes of tiles, a committed table: `python -m benchmarks.tiles` measures what it is chosen from on a GPU."""

from typing import NamedTuple

# The columns of tokens are padded to multiples of this, which every tile that reads beyond the last token divides.
PADDING = 128
# Fewer programs than this leave most of a large GPU idle.
ENOUGH_PROGRAMS = 264

# Up to these widths a thread keeps a token's dimensions and values in its registers.
NARROW_DIM = 16
NARROW_VALUES = 8


class Tile(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int = 2

    def options(self) -> dict[str, int]:
        """What the launch of a kernel is told."""
        return {"num_warps": self.warps, "num_stages": self.stages}


# The first that makes enough programs; the last makes do.
NARROW = (Tile(256, 64, 4), Tile(128, 64, 4))
# By the larger of dimensions and values, padded to a power of two.
PRODUCT = {32: Tile(128, 64, 8), 64: Tile(128, 64, 8), 128: Tile(128, 64, 8, 1)}
EXACT = Tile(64, 64, 4, 1)
NARROW_BACKWARD = (Tile(256, 8, 4), Tile(128, 8, 4))
WIDE_ROWS = {32: Tile(64, 32, 4), 64: Tile(64, 32, 4), 128: Tile(64, 32, 4)}
WIDE_COLUMNS = {32: Tile(32, 64, 4, 1), 64: Tile(32, 64, 4, 1), 128: Tile(64, 64, 4, 1)}
PRODUCT_ROWS = {32: Tile(128, 32, 8), 64: Tile(128, 64, 8, 1), 128: Tile(64, 64, 4, 1)}
PRODUCT_COLUMNS = {32: Tile(32, 64, 4), 64: Tile(64, 128, 8, 1), 128: Tile(32, 64, 4, 1)}
# With eight warps, in products 16 wide, triton 3.6 reads beyond its shared memory (compute-sanitizer, H200).
NARROWEST_CHUNK = 32
WIDEST_CHUNK = 128
# So many numbers of tokens are split into parts by one program.
SPLIT = 8192


def narrow(choices: tuple[Tile, ...], rows: int, batch: int) -> Tile:
    """The largest tile that still makes enough programs."""
    for tile in choices:
        if batch * rows >= tile.queries * ENOUGH_PROGRAMS:
            return tile
    return choices[-1]


def parts(count: int, size: int) -> int:
    """How many parts of a size hold a count."""
    return -(-count // size)


def columns_for(count: int) -> int:
    """How many columns hold a number of tokens, a multiple of every tile."""
    return parts(count, PADDING) * PADDING


def split_at_once(width: int) -> int:
    """How many tokens of a width a program splits into parts."""
    return min(PADDING, max(SPLIT // width, 16))


def padded(size: int) -> int:
    """The width of a product's operand: the next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def chunk(value_dim: int) -> int:
    """How many values a program pools."""
    return min(padded(value_dim), WIDEST_CHUNK)


def chunk_backward(value_dim: int) -> int:
    """How many values a product of the backward kernels is wide."""
    return max(NARROWEST_CHUNK, chunk(value_dim))


def by_width(table: dict[int, Tile], *widths: int) -> Tile:
    """The tile for the largest of these widths."""
    return table[max(32, *widths)]
