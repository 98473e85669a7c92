"""The forward kernel for few dimensions and few values: a thread for each query, all sums in its registers.

A log-kernel is at most 0, and a bias comes shifted to be so too: no running maximum is needed. A row whose mass is so
small that terms may have been lost, whose mass is NaN, or whose width cannot be squared, is marked and recomputed by
`exact`. For compact kernels without a bias only the width is checked.
"""
# ruff: noqa: N803, RUF005, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import factor_of, mass, scales
from regard.backends.fused.tiles import COUNTS, allows, crosses, keys_of, row_of, start

# Terms below 2^-126 vanish; 2^40 of them are still nothing beside this mass.
LEAST_MASS = tl.constexpr(2.0**-60)
WIDEST = tl.constexpr(2.0**40)


@triton.jit(do_not_specialize=COUNTS)
def narrow_forward(
    query, key, width, value, bias, output, log_mass, statistics,
    inner, queries, keys, key_columns, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, COMPACT: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Pool BM queries: output (queries, value_dim), log_mass (queries,), statistics (queries, 3)."""
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    exists = m < queries
    rows, key = start(query, batch, inner) + m.to(tl.int64) * query[3], start(key, batch, inner)
    value, bias = start(value, batch, inner), start(bias, batch, inner)
    width = start(width, batch, inner)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    factor = factor_of(scale, LINK)
    q = ()
    for d in tl.static_range(DIM):
        q = q + (tl.load(rows + d * query[4], mask=exists, other=0.0).to(tl.float32),)
    pooled = ()
    for _ in tl.static_range(VALUE_DIM):
        pooled = pooled + (tl.zeros([BM], tl.float32),)
    total = tl.zeros([BM], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        # Columns beyond the last key hold infinity: their mass is 0, or NaN if the query is infinite.
        squared = tl.zeros([BN, BM], tl.float32)
        for d in tl.static_range(DIM):
            difference = q[d][None, :] - tl.load(row_of(key, d, key_columns) + first + n)[:, None]
            squared = tl.fma(difference, difference, squared)
        lift = tl.load(bias + first + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        share = mass(squared, factor[None, :], lift[:, None], LINK)
        if COMPACT and not HAS_BIAS:  # these rows are not recomputed, so infinite queries need the mask here
            if first + BN > keys:
                share = tl.where((first + n < keys)[:, None], share, 0.0)
        if HAS_BAND:
            if crosses(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                share = tl.where(allows((first + n)[:, None] - m[None, :], band), share, 0.0)
        total += tl.sum(share, 0)
        sums = ()
        for v in tl.static_range(VALUE_DIM):
            column = tl.load(row_of(value, v, key_columns) + first + n)
            sums = sums + (pooled[v] + tl.sum(share * column[:, None], 0),)
        pooled = sums
    lost = ~(total >= LEAST_MASS)  # true for NaN, too
    if COMPACT and not HAS_BIAS:
        lost = total < 0.0  # a compact kernel without bias is 0, or far above what can be lost
    if LINK != "boxcar":
        lost |= (scale > WIDEST) | (scale < 1 / WIDEST)
    inverse = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    at = batch.to(tl.int64) * queries + m
    for v in tl.static_range(VALUE_DIM):
        tl.store(output + at * VALUE_DIM + v, pooled[v] * inverse, mask=exists)
    tl.store(log_mass + at, tl.log(total), mask=exists)
    tl.store(statistics + at * 3, tl.zeros([BM], tl.float32), mask=exists)
    tl.store(statistics + at * 3 + 1, inverse, mask=exists)
    tl.store(statistics + at * 3 + 2, lost.to(tl.float32), mask=exists)
