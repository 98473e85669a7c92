"""The sizes of tiles and slabs, a committed table, found by timing each kernel alone on one H200."""

from regard.backends.fused.configurations import Tile

# Tokens are padded to blocks of this size, for which reach and flags are kept: the tile of exact scores.
BLOCK = 64
# Pairs of a slab: 256 MiB of scores.
SLAB = 2**26
SCORE = Tile(BLOCK, BLOCK, 4)
# For exact and for lifted scores: the former are pooled with more digits.
POOL = Tile(16, 64, 4, 3), Tile(32, 64, 4, 3)
GRADE = Tile(64, 32, 4, 1), Tile(64, 64, 4, 1)
PULL = Tile(64, 32, 4, 1)
# Hidden units whose sums a program keeps in registers.
PULL_UNITS = 8
# Programs that fill a large GPU.
ENOUGH_PROGRAMS = 264
# Tokens that a program lifts.
LIFT_TOKENS = 8
LIFT_WARPS = 4
# Blocks of keys that a program looks through for tokens beyond the lift's range.
SPAN = 16
WIDEST_CHUNK = 128
# Numbers that one program reads at once where a single one looks through all of them.
LONGEST_RUN = 4096
