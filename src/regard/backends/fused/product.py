"""The forward kernel for many dimensions: squared distances and pooling as matrix products of `parts`.

|q - k|^2 = |q|^2 + |k|^2 - 2 q'k about the mean of the keys: what is lost is 2^-22 of |q|^2 + |k|^2. A row where that
is more than `LARGEST_REACH` 2^-22 of a score is marked and redone from differences by `exact`, and so is one whose
mass is tiny or NaN.
"""
# ruff: noqa: N803, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, factor_of, scales
from regard.backends.fused.narrow import LEAST_MASS, WIDEST
from regard.backends.fused.parts import product_of_parts, split
from regard.backends.fused.tiles import COUNTS, allows, crosses, keys_of, row_of, start

# A score is then off by 2^-16 at most, in units of log 2; a weight by one part in 100,000.
LARGEST_REACH = tl.constexpr(64.0)


@triton.jit
def _load_tokens(tokens, batch, n, d, count, DIM: tl.constexpr):
    """Tokens (n, d) of one batch element in float32, 0 beyond the last token and dimension."""
    place = (batch * count + n.to(tl.int64))[:, None] * DIM + d[None, :]
    return tl.load(tokens + place, mask=(n < count)[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _split_keys(key, parts, squares, frame, batch, block, blocks, count, columns, DIM: tl.constexpr,
                DIMS: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Split BN keys less the mean of some of them; their squares are infinite beyond the last key."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    some = (tl.arange(0, 64).to(tl.int64) * count) // 64
    middle = tl.sum(_load_tokens(key, batch, some, d, count, DIM), 0) / 64.0
    tile = tl.where((n < count)[:, None], _load_tokens(key, batch, n, d, count, DIM) - middle[None, :], 0.0)
    square = tl.sum(tile * tile, 1)
    tl.store(squares + batch * columns + n, tl.where(n < count, square, INFINITY))
    frame += batch * (DIMS + blocks)
    tl.store(frame + DIMS + block, tl.max(square, 0))
    if block == 0:
        tl.store(frame + d, middle)
    head, rest = split(tile)
    place = (batch * 2 * columns + n[:, None]) * DIMS + d[None, :]
    tl.store(parts + place, head)
    tl.store(parts + place + columns * DIMS, rest)


@triton.jit
def _split_values(value, parts, batch, block, count, columns, DIM: tl.constexpr, DIMS: tl.constexpr,
                  BN: tl.constexpr):  # fmt: skip
    """Split BN values into columns, as the second product wants them."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    head, rest = split(_load_tokens(value, batch, n, d, count, DIM))
    place = (batch * 2 * DIMS + d[None, :]) * columns + n[:, None]
    tl.store(parts + place, head)
    tl.store(parts + place + columns * DIMS, rest)


@triton.jit(do_not_specialize=COUNTS)
def split_tokens(
    key, value, key_parts, value_parts, squares, frame, count, columns, blocks, chunks,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_DIMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN keys or values, (count, DIM) in memory, in `blocks`: programs up to `chunks` keys, the others values.

    key_parts: heads and rests, (2, columns, DIMS); value_parts: (2, VALUE_DIMS, columns); squares: (columns,); frame:
    the centre (DIMS,), then the largest square of each block (blocks,).
    """
    program = tl.program_id(0)
    if program < chunks:
        batch, block = (program // blocks).to(tl.int64), program % blocks
        _split_keys(key, key_parts, squares, frame, batch, block, blocks, count, columns, DIM, DIMS, BN)
    else:
        batch, block = ((program - chunks) // blocks).to(tl.int64), (program - chunks) % blocks
        _split_values(value, value_parts, batch, block, count, columns, VALUE_DIM, VALUE_DIMS, BN)


@triton.jit(do_not_specialize=COUNTS)
def product_forward(
    query, key_parts, squares, frame, width, value_parts, bias, output, log_mass, statistics,
    inner, queries, keys, key_columns, key_blocks, blocks, chunks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_DIMS: tl.constexpr, LINK: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Pool BM queries over BV of the values; key_parts, squares, frame, value_parts: what `split_tokens` writes."""
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIMS)
    v = chunk * BV + tl.arange(0, BV)
    width, frame = start(width, batch, inner), start(frame, batch, inner)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    factor = factor_of(scale, LINK)
    place = start(query, batch, inner) + m.to(tl.int64)[:, None] * query[3] + d[None, :] * query[4]
    real = (m < queries)[:, None] & (d < DIM)[None, :]
    q = tl.load(place, mask=real, other=0.0).to(tl.float32) - tl.load(frame + d)[None, :]
    q = tl.where(real, q, 0.0)
    own = tl.sum(q * q, 1)
    farthest = tl.zeros([256], tl.float32)
    for first in range(0, key_blocks, 256):
        some = first + tl.arange(0, 256)
        farthest = tl.maximum(farthest, tl.load(frame + DIMS + some, mask=some < key_blocks, other=0.0))
    far = ~(factor * (own + tl.max(farthest, 0)) <= LARGEST_REACH)
    head, rest = split(q * (2.0 * factor)[:, None])
    own *= factor
    key_heads, value_heads = start(key_parts, batch, inner), start(value_parts, batch, inner)
    key_rests, value_rests = row_of(key_heads, DIMS, key_columns), row_of(value_heads, VALUE_DIMS, key_columns)
    squares, bias = start(squares, batch, inner), start(bias, batch, inner)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BV], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    if tl.min((far | (m >= queries)).to(tl.int32), 0) == 1:
        end = begin  # nothing here is kept: leave it all to the other kernel
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        tokens = n[:, None] * DIMS + d[None, :]
        key_head = tl.load(key_heads + tokens)
        key_rest = tl.load(key_rests + tokens)
        scores = product_of_parts(head, rest, key_head, key_rest)
        # Beyond the last key squares are infinite, and the mass is 0 without a mask.
        scores = (scores - own[:, None]) - factor[:, None] * tl.load(squares + n)[None, :]
        if HAS_BIAS:
            scores += tl.load(bias + n)[None, :]
        share = tl.exp2(scores)
        if HAS_BAND:
            if crosses(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                share = tl.where(allows(n[None, :] - m[:, None], band), share, 0.0)
        total += tl.sum(share, 1)
        share_head, share_rest = split(share)
        columns = row_of(0, v, key_columns)[:, None] + n[None, :]
        value_head = tl.load(value_heads + columns)
        value_rest = tl.load(value_rests + columns)
        pooled += product_of_parts(share_head, share_rest, value_head, value_rest)
    exists = m < queries
    lost = far | ~(total >= LEAST_MASS) | (scale > WIDEST) | (scale < 1 / WIDEST)
    inverse = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    at = batch.to(tl.int64) * queries + m
    to = (output + at * VALUE_DIM)[:, None] + v[None, :]
    tl.store(to, pooled * inverse[:, None], mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + at, tl.log(total), mask=exists)
        tl.store(statistics + at * 3, tl.zeros([BM], tl.float32), mask=exists)
        tl.store(statistics + at * 3 + 1, inverse, mask=exists)
        tl.store(statistics + at * 3 + 2, lost.to(tl.float32), mask=exists)
