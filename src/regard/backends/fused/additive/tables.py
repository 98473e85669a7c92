"""The sizes of tiles and slabs, a committed table, found by timing each kernel alone on one H200."""

from regard.backends.fused.configurations import Tile

# Tokens are padded to blocks of this size, for which reach and flags are kept: the tile of exact scores.
BLOCK = 64
# Pairs of a slab of exact and of lifted scores: 256 and 512 MiB. A lifted one is done so soon that the host would not
# keep up with smaller ones.
SLAB = 2**26, 2**27
SCORE = Tile(BLOCK, BLOCK, 4)
# For exact and for lifted scores: the former are pooled with more digits.
POOL = Tile(16, 64, 4, 3), Tile(32, 64, 4, 3)
GRADE = Tile(64, 32, 4, 1), Tile(64, 64, 4, 1)
PULL = Tile(64, 32, 4, 1)
# Hidden units whose sums a program keeps in registers.
PULL_UNITS = 8
# Programs that fill a large GPU.
ENOUGH_PROGRAMS = 264
# Tokens that a program lifts, or whose gradients it gathers.
LIFT_TOKENS = 8
LIFT_WARPS, PULL_WARPS = 4, 2
# Blocks of keys that a program looks through for flags.
SPAN = 16
# A block where more than one activation in so many is beyond the lift's range is computed exactly as a whole.
STRAY_SHARE = 32
# Tokens among which a program looks for strays, and those that it adds a stray's rest to, or sums over.
STRAY_GROUP, STRAY_TOKENS, STRAY_SUM = 16, 512, 1024
# Tokens and units that a program looks through for strays at once.
LIST_TOKENS, LIST_UNITS = 1024, 4
WIDEST_CHUNK = 128
# Numbers that one program reads at once where a single one looks through all of them.
LONGEST_RUN = 4096
