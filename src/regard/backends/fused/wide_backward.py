"""The backward kernels for many dimensions or values: tiles of pairs, whose sums are matrix products.

The same gradients as in `narrow_backward`, by rows and by columns. Where PRODUCT, squared distances and the gradients
of tokens are products about the centre of the keys, for tiles whose rounding bound holds (`product`); other tiles are
summed from differences, dimension by dimension.
"""
# ruff: noqa: N803, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import factor_of, per_squared, scales, weight_and_pull
from regard.backends.fused.product import LARGEST_REACH
from regard.backends.fused.tiles import (
    COUNTS,
    allows,
    crosses,
    differences,
    keys_of,
    queries_of,
    row_of,
    start,
    twice_dot,
)


@triton.jit
def centred(tokens, centre, t, d, columns, DIM: tl.constexpr):
    """Tokens (tokens, dims) less the centre, 0 beyond the last dimension."""
    tile = tl.load(row_of(tokens, d, columns)[None, :] + t[:, None], mask=(d < DIM)[None, :], other=0.0)
    return tile - tl.load(centre + d, mask=d < DIM, other=0.0)[None, :]


@triton.jit
def changes(left, right, a, b, left_columns, right_columns, VALUE_DIM: tl.constexpr, BA: tl.constexpr,
            BB: tl.constexpr, BV: tl.constexpr):  # fmt: skip
    """dO v' for a tile (BA, BB), or v dO': products of the columns a of one and b of the other."""
    change = tl.zeros([BA, BB], tl.float32)
    for first in range(0, VALUE_DIM, BV):
        v = first + tl.arange(0, BV)
        real = (v < VALUE_DIM)[:, None]
        one = tl.load(row_of(left, v, left_columns)[:, None] + a[None, :], mask=real, other=0.0)
        other = tl.load(row_of(right, v, right_columns)[:, None] + b[None, :], mask=real, other=0.0)
        change += tl.dot(one.T, other, input_precision="tf32x3")
    return change


@triton.jit
def near(q, factor, reach):
    """Whether products are exact enough for every query of a tile."""
    return tl.max(factor * (tl.sum(q * q, 1) + reach), 0) <= LARGEST_REACH


@triton.jit
def squared_by_product(q, k):
    """|q|^2 + |k|^2 - 2 q'k of centred tokens."""
    both = tl.sum(q * q, 1)[:, None] + tl.sum(k * k, 1)[None, :]
    return tl.maximum(both - 2.0 * tl.dot(q, k.T, input_precision="tf32x3"), 0.0)


@triton.jit(do_not_specialize=COUNTS)
def wide_rows(
    query, key, width, value, bias, centre, reach, grad_output, rows, grad_query, grad_width,
    inner, queries, keys, query_columns, key_columns, blocks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, PRODUCT: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries (DIM, columns) and of their widths (columns,)."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIMS)
    exists = m < queries
    query, key = start(query, batch, inner), start(key, batch, inner)
    value, bias = start(value, batch, inner), start(bias, batch, inner)
    width, centre = start(width, batch, inner), start(centre, batch, inner)
    grad_output += batch * VALUE_DIM * query_columns
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    rows += batch * 3 * query_columns
    peak = tl.load(rows + m)
    inverse = tl.load(row_of(rows, 1, query_columns) + m)
    own = tl.load(row_of(rows, 2, query_columns) + m)
    by_product = False
    q = centred(query, centre, m, d, query_columns, DIM)
    if PRODUCT:
        by_product = near(q, factor_of(scale, LINK), tl.load(start(reach, batch, inner)))
    products = tl.zeros([BM, DIMS], tl.float32)
    pulled = tl.zeros([BM, DIMS], tl.float32)
    pulls = tl.zeros([BM], tl.float32)
    widened = tl.zeros([BM], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        k = tl.zeros([BN, DIMS], tl.float32)
        if PRODUCT:
            k = tl.where((n < keys)[:, None], centred(key, centre, n, d, key_columns, DIM), 0.0)
        if by_product:
            squared = squared_by_product(q, k)
        else:
            squared = differences(query + m, key + n, m, n, query_columns, key_columns, queries, keys, DIM, BM, BN)
        change = changes(grad_output, value, m, n, query_columns, key_columns, VALUE_DIM, BM, BN, BV) - own[:, None]
        lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        _, pull, z = weight_and_pull(squared, scale[:, None], lift[None, :], peak[:, None], LINK)
        pull = tl.where((n < keys)[None, :], pull * inverse[:, None], 0.0)
        if HAS_BAND:
            if crosses(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                pull = tl.where(allows(n[None, :] - m[:, None], band), pull, 0.0)
        change *= pull
        # A forbidden pair has gradient 0 and may be infinitely far: 0 * inf is left out.
        widened += tl.sum(tl.where(change == 0.0, 0.0, change * z), 1)
        change = per_squared(change, scale[:, None], LINK)
        if by_product:
            pulls += tl.sum(change, 1)
            products += twice_dot(change, k)
        else:
            for one in range(DIM):
                to = tl.load(row_of(query, one, query_columns) + m)[:, None]
                to = to - tl.load(row_of(key, one, key_columns) + n, mask=n < keys, other=0.0)[None, :]
                pulled += tl.where((d == one)[None, :], tl.sum(change * to, 1)[:, None], 0.0)
    tl.store(grad_width + batch * query_columns + m, -2.0 * widened * scale, mask=exists)
    total = 2.0 * (q * pulls[:, None] + pulled) - products
    place = row_of(grad_query, batch * DIM + d, query_columns)[None, :] + m[:, None]
    tl.store(place, total, mask=exists[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def wide_columns(
    query, key, width, value, bias, centre, reach, grad_output, rows, grad_key, grad_value, grad_bias,
    inner, queries, keys, query_columns, key_columns, blocks, chunks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, PRODUCT: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BN keys (DIM, columns), of BV of their values (VALUE_DIM, columns), of their bias (columns,)."""
    chunk = tl.program_id(0) % chunks
    batch, block = (tl.program_id(0) // chunks // blocks).to(tl.int64), tl.program_id(0) // chunks % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    v = chunk * BV + tl.arange(0, BV)
    exists = n < keys
    query, key = start(query, batch, inner), start(key, batch, inner)
    value, bias = start(value, batch, inner), start(bias, batch, inner)
    width, centre = start(width, batch, inner), start(centre, batch, inner)
    grad_output += batch * VALUE_DIM * query_columns
    rows += batch * 3 * query_columns
    lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
    k = tl.where(exists[:, None], centred(key, centre, n, d, key_columns, DIM), 0.0)
    products = tl.zeros([BN, DIMS], tl.float32)
    pulled = tl.zeros([BN, DIMS], tl.float32)
    pulls = tl.zeros([BN], tl.float32)
    lifted = tl.zeros([BN], tl.float32)
    pooled = tl.zeros([BN, BV], tl.float32)
    begin, end = queries_of(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        scale = scales(width, m, queries, LINK, PER_QUERY, BM)
        peak = tl.load(rows + m)
        inverse = tl.load(row_of(rows, 1, query_columns) + m)
        own = tl.load(row_of(rows, 2, query_columns) + m)
        by_product = False
        q = tl.zeros([BM, DIMS], tl.float32)
        if PRODUCT:
            q = tl.where((m < queries)[:, None], centred(query, centre, m, d, query_columns, DIM), 0.0)
            by_product = near(q, factor_of(scale, LINK), tl.load(start(reach, batch, inner)))
        if by_product:
            squared = squared_by_product(k, q)
        else:
            squared = differences(key + n, query + m, n, m, key_columns, query_columns, keys, queries, DIM, BN, BM)
        change = changes(value, grad_output, n, m, key_columns, query_columns, VALUE_DIM, BN, BM, BV) - own[None, :]
        weight, pull, _ = weight_and_pull(squared, scale[None, :], lift[:, None], peak[None, :], LINK)
        allowed = exists[:, None] & (m < queries)[None, :]
        if HAS_BAND:
            if crosses(block * BN - (first + BM - 1), block * BN + BN - 1 - first, band):
                allowed &= allows(n[:, None] - m[None, :], band)
        weight = tl.where(allowed, weight * inverse[None, :], 0.0)
        pull = tl.where(allowed, per_squared(pull * inverse[None, :], scale[None, :], LINK), 0.0)
        lifted += tl.sum(change * weight, 1)
        change *= pull
        place = row_of(grad_output, v, query_columns)[:, None] + m[None, :]
        grad = tl.load(place, mask=(v < VALUE_DIM)[:, None], other=0.0)
        pooled += twice_dot(weight, grad.T)
        if by_product:
            pulls += tl.sum(change, 1)
            products += twice_dot(change, q)
        else:
            for one in range(DIM):
                to = tl.load(row_of(key, one, key_columns) + n, mask=exists, other=0.0)[:, None]
                to = to - tl.load(row_of(query, one, query_columns) + m)[None, :]
                pulled += tl.where((d == one)[None, :], tl.sum(change * to, 1)[:, None], 0.0)
    values_place = row_of(grad_value, batch * VALUE_DIM + v, key_columns)[None, :] + n[:, None]
    tl.store(values_place, 0.5 * pooled, mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(grad_bias + batch * key_columns + n, lifted, mask=exists)
        total = 2.0 * (k * pulls[:, None] + pulled) - products
        keys_place = row_of(grad_key, batch * DIM + d, key_columns)[None, :] + n[:, None]
        tl.store(keys_place, total, mask=exists[:, None] & (d < DIM)[None, :])
