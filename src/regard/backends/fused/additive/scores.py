"""Exact scores of a slab, tile by tile, by the formula that the activations of each tile allow (`pairs`)."""
# ruff: noqa: N803 - Triton's dialect: capital constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.additive.pairs import (
    CAPPED,
    CAPPED_REACH,
    DIRECT,
    NEAR,
    PLAIN,
    PLAIN_REACH,
    SUM,
    scores_of,
)
from regard.backends.fused.additive.scale import scale_of
from regard.backends.fused.tiles import start


@triton.jit
def is_outside(low, high, band):
    """Whether no offset key - query between the two is in the band."""
    return (high < band[0]) | (low > band[1])


@triton.jit
def tile_at(first_batch, row_blocks, key_blocks):
    """Batch element in the slab and in the whole, block of rows, block of keys of this program."""
    program = tl.program_id(0)
    element = program // (row_blocks * key_blocks)
    rest = program % (row_blocks * key_blocks)
    return element, first_batch + element, rest // key_blocks, rest % key_blocks


@triton.jit
def direct_scores(query, key, weight, batch, inner, m, n, queries, keys, UNITS: tl.constexpr, BM: tl.constexpr,
                  BN: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Scores of any activations, read as they came; what is beyond the last token repeats it and counts for nothing."""
    a = start(query, batch, inner) + tl.minimum(m, queries - 1).to(tl.int64) * query[3]
    b = start(key, batch, inner) + tl.minimum(n, keys - 1).to(tl.int64) * key[3]
    return scores_of(a, b, weight, query[4], key[4], UNITS, BM, BN, DIRECT, FAST)


@triton.jit
def exact_scores(
    query, key, query_exps, key_exps, query_tanhs, key_tanhs, query_reach, key_reach, weight, slab,
    first_batch, first_row, inner, queries, keys, row_blocks, key_blocks, query_columns, key_columns, band,
    UNITS: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a tile of the slab (elements, rows, key_columns).

    query, key: operands of a itself, with the strides of tokens and units; exps, tanhs: columns; reach: for
    each block.
    """
    element, batch, row_block, block = tile_at(first_batch, row_blocks, key_blocks)
    row, n0 = first_row + row_block * BM, block * BN
    if not is_outside(n0 - (row + BM - 1), n0 + BN - 1 - row, band):
        m, n = row + tl.arange(0, BM), n0 + tl.arange(0, BN)
        weights = start(weight, batch, inner)
        far = tl.load(start(query_reach, batch, inner) + row // BLOCK)
        near = tl.load(start(key_reach, batch, inner) + n0 // BLOCK)
        if (far <= NEAR) & (near <= NEAR):
            a, b = start(query_tanhs, batch, inner) + m, start(key_tanhs, batch, inner) + n
            scores = scores_of(a, b, weights, query_columns, key_columns, UNITS, BM, BN, SUM, FAST)
        elif far + near <= PLAIN_REACH:
            a, b = start(query_exps, batch, inner) + m, start(key_exps, batch, inner) + n
            scores = scores_of(a, b, weights, query_columns, key_columns, UNITS, BM, BN, PLAIN, FAST)
        elif (far <= CAPPED_REACH) & (near <= CAPPED_REACH):
            a, b = start(query_exps, batch, inner) + m, start(key_exps, batch, inner) + n
            scores = scores_of(a, b, weights, query_columns, key_columns, UNITS, BM, BN, CAPPED, FAST)
        else:
            scores = direct_scores(query, key, weights, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST)
        at = (element.to(tl.int64) * row_blocks + row_block) * BM + tl.arange(0, BM)
        tl.store(slab + at[:, None] * key_columns + n[None, :], scores)


@triton.jit
def any_flag(flags, blocks, SCAN: tl.constexpr):
    """Whether one of so many blocks is flagged."""
    found = 0
    for first in range(0, blocks, SCAN):
        at = first + tl.arange(0, SCAN)
        found += tl.max(tl.load(flags + at, mask=at < blocks, other=0), 0)
    return found


@triton.jit
def patch_scores(
    query, key, query_flags, key_flags, query_alone, key_alone, weight, slab,
    first_batch, first_row, inner, queries, keys, row_blocks, key_blocks, key_columns,
    UNITS: tl.constexpr, PADDED: tl.constexpr, SPAN: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Write exact scores over lifted tiles of a flagged block, in the lift's own terms.

    A program looks after SPAN blocks of keys. flags: (batch, blocks), 1 for a block with too many strays; alone:
    (batch, columns), what `pool` adds for each token.
    """
    element, batch, row_block, span = tile_at(first_batch, row_blocks, tl.cdiv(key_blocks, SPAN))
    row = first_row + row_block * BM
    own = tl.load(start(query_flags, batch, inner) + row // BM)
    others = start(key_flags, batch, inner)
    last = tl.minimum(span * SPAN + SPAN, key_blocks)
    if own + any_flag(others + span * SPAN, last - span * SPAN, SPAN) > 0:
        m = row + tl.arange(0, BM)
        weights = start(weight, batch, inner)
        alone = tl.load(start(query_alone, batch, inner) + m)
        scale = scale_of(weights, UNITS, PADDED)
        at = (element.to(tl.int64) * row_blocks + row_block) * BM + tl.arange(0, BM)
        for block in range(span * SPAN, last):
            if own + tl.load(others + block) > 0:
                n = block * BN + tl.arange(0, BN)
                scores = direct_scores(query, key, weights, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST)
                scores -= alone[:, None] + tl.load(start(key_alone, batch, inner) + n)[None, :]
                tl.store(slab + at[:, None] * key_columns + n[None, :], scores * scale)
