"""The backward kernel over a slab of scores: their gradients, written to a slab, and those of the values.

With weights P: dS = P (dO v' - dO'o + dlog_mass), the weights recomputed from log_mass; dV = P'dO.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.additive.finish import finished, kept_weights
from regard.backends.fused.additive.scale import scale_of
from regard.backends.fused.links import INFINITY, LOG2E
from regard.backends.fused.tiles import start


@triton.jit
def grade_slab(
    slab, changes, value, weight, key_bias, row_bias, bias, allowed, seed, grad_output, means, log_mass, change_scale,
    grad_value, sums,
    first_batch, first_row, inner, queries, keys, rows, columns, key_blocks, parts, part_rows, chunks,
    elements, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The changes of BN keys' scores over one part of the slab's rows, and what these rows give to BV of their values.

    changes: (elements, rows, columns), where LIFTED in half precision times change_scale, 0 for pairs that are
    forbidden or do not exist. means: (batch, queries), dO'o - dlog_mass. grad_value: (parts, elements, keys,
    VALUE_DIM); sums: (parts, elements, columns), changes summed over the part's rows.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    part, program = program % parts, program // parts
    element, block = program // key_blocks, program % key_blocks
    batch = first_batch + element
    n0 = block * BN
    n = n0 + tl.arange(0, BN)
    v = chunk * BV + tl.arange(0, BV)
    # Places inside an element of the slab, a tile of values and a block of rows are small numbers.
    slab += element.to(tl.int64) * rows * columns + n0
    changes += element.to(tl.int64) * rows * columns + n0
    values = start(value, batch, inner) + n0.to(tl.int64) * value[3]
    lines = tl.arange(0, BM)
    unscale, grow = 1.0, 1.0
    if LIFTED:
        unscale = 1.0 / scale_of(start(weight, batch, inner), UNITS, PADDED)
        grow = tl.load(change_scale)
    pooled = tl.zeros([BN, BV], tl.float32)
    summed = tl.zeros([BN], tl.float32)
    for row in range(part * part_rows, tl.minimum(part * part_rows + part_rows, rows), BM):
        m0 = first_row + row
        m = m0 + tl.arange(0, BM)
        exists = m < queries
        inside = tl.minimum(m, queries - 1)
        at = (row + lines)[:, None] * columns + tl.arange(0, BN)[None, :]
        scores = finished(
            tl.load(slab + at), inside, n, batch, inner, m0, n0, keys, unscale, key_bias, bias, allowed, band,
            HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, BM, BN,
        )  # fmt: skip
        line = batch.to(tl.int64) * queries + m0
        base = tl.load(log_mass + line + lines, mask=exists, other=0.0)
        if LIFTED:
            base -= tl.load(start(row_bias, batch, inner) + m, mask=exists, other=0.0)
        base = tl.where(base == -INFINITY, 0.0, base) * LOG2E
        shares = tl.where(exists[:, None], tl.exp2(scores - base[:, None]), 0.0)
        change = tl.zeros([BM, BN], tl.float32)
        for first in range(0, VALUE_DIM, BV):
            w = first + tl.arange(0, BV)
            real = (w < VALUE_DIM)[None, :]
            place = grad_output + line * VALUE_DIM + lines[:, None] * VALUE_DIM + w[None, :]
            grad = tl.load(place, mask=exists[:, None] & real, other=0.0)
            place = values + tl.arange(0, BN)[:, None] * value[3] + w[None, :] * value[4]
            tile = tl.load(place, mask=(n < keys)[:, None] & real, other=0.0).to(tl.float32)
            if LIFTED:
                change = tl.dot(grad.to(tl.float32), tile.T, change, input_precision="tf32")
            else:
                change += tl.dot(grad.to(tl.float32), tile.T, input_precision="tf32x3")
        kept = shares
        if HAS_DROPOUT:
            keep = kept_weights(seed, dropout, m, n, batch, queries, keys)
            change *= keep
            kept = shares * keep
        change = (change - tl.load(means + line + lines, mask=exists, other=0.0)[:, None]) * shares
        place = grad_output + line * VALUE_DIM + lines[:, None] * VALUE_DIM + v[None, :]
        grad = tl.load(place, mask=exists[:, None] & (v < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
        if LIFTED:
            pooled = tl.dot(kept.T, grad, pooled, input_precision="tf32")
        else:
            pooled += 2.0 * tl.dot(kept.T, grad, input_precision="tf32x3")
        if chunk == 0:
            summed += tl.sum(change, 0)
            tl.store(changes + at, (change * grow).to(changes.dtype.element_ty))
    own = (part.to(tl.int64) * elements + element) * keys + n
    to = grad_value + own[:, None] * VALUE_DIM + v[None, :]
    factor = 1.0 if LIFTED else 0.5
    tl.store(to, pooled * factor, mask=(n < keys)[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(sums + (part.to(tl.int64) * elements + element) * columns + n, summed * grow)
