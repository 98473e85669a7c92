"""The forward kernel that is right for everything: differences, and softmax in the log domain with a running maximum.

It runs the sizes that no faster kernel has, and the rows that a faster one has marked: a query a million bandwidths
away gets the value of its nearest key.
"""
# ruff: noqa: N803, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, log_kernel, scales
from regard.backends.fused.tiles import COUNTS, allows, crosses, differences, keys_of, start, twice_dot

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=COUNTS)
def exact_forward(
    query, key, width, value, bias, output, log_mass, statistics,
    inner, queries, keys, blocks, chunks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, MARKED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Pool BM queries over BV of the values; MARKED: only rows that are marked in the statistics."""
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    wanted = m < queries
    at = batch.to(tl.int64) * queries + m
    if MARKED:
        wanted = tl.load(statistics + at * 3 + 2, mask=wanted, other=0.0) > 0
        if tl.max(wanted.to(tl.int32), 0) == 0:
            return
    rows = start(query, batch, inner) + m.to(tl.int64) * query[3]
    keys_start, value_start = start(key, batch, inner), start(value, batch, inner)
    bias, width = start(bias, batch, inner), start(width, batch, inner)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    v = chunk * BV + tl.arange(0, BV)
    peak = tl.full([BM], -INFINITY, tl.float32)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BV], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        columns = keys_start + n.to(tl.int64) * key[3]
        squared = differences(rows, columns, m, n, query[4], key[4], queries, keys, DIM, BM, BN)
        scores = log_kernel(squared, scale[:, None], LINK)
        if HAS_BIAS:
            # A hidden key has a bias of minus infinity, to which a NaN score must not be added.
            lift = tl.load(bias + n)[None, :]
            scores = tl.where(lift == -INFINITY, -INFINITY, scores + lift)
        scores = tl.where((n < keys)[None, :], scores, -INFINITY)
        if HAS_BAND:
            if crosses(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                scores = tl.where(allows(n[None, :] - m[:, None], band), scores, -INFINITY)
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen no key yet has peak -inf; measured from 0 its mass stays 0 and nothing is NaN.
        base = tl.where(higher == -INFINITY, 0.0, higher)
        shrink = tl.exp2(peak - base)
        share = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(share, 1)
        place = value_start + v.to(tl.int64)[:, None] * value[4] + n.to(tl.int64)[None, :] * value[3]
        tile = tl.load(place, mask=(v < VALUE_DIM)[:, None] & (n < keys)[None, :], other=0.0).to(tl.float32)
        pooled = pooled * shrink[:, None] + twice_dot(share, tile.T)
        peak = higher
    seen = total > 0
    peak = tl.where(seen, peak, 0.0)
    inverse = tl.where(seen, 1.0 / tl.where(seen, total, 1.0), 0.0)
    to = (output + at * VALUE_DIM)[:, None] + v[None, :]
    tl.store(to, 0.5 * pooled * inverse[:, None], mask=wanted[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + at, tl.log(total) + peak * LN2, mask=wanted)
        tl.store(statistics + at * 3, peak, mask=wanted)
        tl.store(statistics + at * 3 + 1, inverse, mask=wanted)
        if not MARKED:
            tl.store(statistics + at * 3 + 2, tl.zeros([BM], tl.float32), mask=wanted)
