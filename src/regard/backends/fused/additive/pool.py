"""The forward kernel over a slab of scores: online softmax, and the values pooled by it (eq. 1 and 3)."""
# ruff: noqa: N803 - Triton's dialect: capital constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.additive.finish import finished, kept_weights
from regard.backends.fused.additive.scale import scale_of
from regard.backends.fused.links import INFINITY
from regard.backends.fused.tiles import keys_of, start

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def pool_slab(
    slab, value, weight, key_bias, row_bias, bias, allowed, seed, output, log_mass,
    first_batch, first_row, inner, queries, keys, rows, columns, blocks, chunks, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Pool BM queries of a slab (elements, rows, columns) over BV of the values.

    LIFTED: the slab's scores are scaled by the weights' power of two, and row_bias (batch, columns) is their part
    that depends on the query alone: it counts for log_mass. output: (batch, queries, VALUE_DIM); log_mass: (batch,
    queries).
    """
    chunk = tl.program_id(0) % chunks
    element, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    batch = first_batch + element
    m0 = first_row + block * BM
    m = m0 + tl.arange(0, BM)
    # Places inside an element of the slab, and inside a tile of values, are small numbers.
    slab += element.to(tl.int64) * rows * columns
    at = (block * BM + tl.arange(0, BM))[:, None] * columns + tl.arange(0, BN)[None, :]
    v = chunk * BV + tl.arange(0, BV)
    values = start(value, batch, inner)
    place = tl.arange(0, BN)[:, None] * value[3] + v[None, :] * value[4]
    unscale = 1.0
    if LIFTED:
        unscale = 1.0 / scale_of(start(weight, batch, inner), UNITS, PADDED)
    exists = m < queries
    inside = tl.minimum(m, queries - 1)
    peak = tl.full([BM], -INFINITY, tl.float32)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BV], tl.float32)
    begin, end = keys_of(m0, m0 + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        scores = finished(
            tl.load(slab + first + at), inside, n, batch, inner, m0, first, keys, unscale, key_bias, bias, allowed,
            band, HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, BM, BN,
        )  # fmt: skip
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen no key yet has peak -inf; measured from 0 its mass stays 0 and nothing is NaN.
        base = tl.where(higher == -INFINITY, 0.0, higher)
        shrink = tl.exp2(peak - base)
        share = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(share, 1)
        if HAS_DROPOUT:
            share *= kept_weights(seed, dropout, m, n, batch, queries, keys)
        line = values + tl.cast(first, tl.int64) * value[3]
        tile = tl.load(line + place, mask=(n < keys)[:, None] & (v < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
        if LIFTED:
            pooled = pooled * shrink[:, None] + tl.dot(share, tile, input_precision="tf32")
        else:
            # Doubled, so that it is not added inside the matrix units (`tiles.twice_dot`).
            pooled = pooled * shrink[:, None] + 2.0 * tl.dot(share, tile, input_precision="tf32x3")
        peak = higher
    seen = total > 0
    factor = 1.0 if LIFTED else 0.5
    inverse = tl.where(seen, factor / tl.where(seen, total, 1.0), 0.0)
    row = batch.to(tl.int64) * queries + m
    to = output + row[:, None] * VALUE_DIM + v[None, :]
    tl.store(to, (pooled * inverse[:, None]).to(output.dtype.element_ty), mask=exists[:, None] & (v < VALUE_DIM)[None])
    if chunk == 0:
        mass = tl.where(seen, tl.log(tl.where(seen, total, 1.0)) + tl.where(seen, peak, 0.0) * LN2, -INFINITY)
        mass = tl.where(total != total, total, mass)
        if LIFTED:
            mass += tl.load(start(row_bias, batch, inner) + m, mask=exists, other=0.0)
        tl.store(log_mass + row, mass, mask=exists)
