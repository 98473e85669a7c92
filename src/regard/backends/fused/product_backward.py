"""The backward kernels for many dimensions by products alone: squared distances and all sums, as in `product`.

The same gradients as in `narrow_backward`, by rows and by columns, about the centre of the keys, in `parts`. Queries
for which the bound on rounding does not hold have infinite squares here, which leaves them no weight: `wide_backward`
adds them from differences.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, per_squared, scales
from regard.backends.fused.parts import load_across, load_rows, product_of_parts, split
from regard.backends.fused.tiles import COUNTS, keys_of, queries_of, row_of, start
from regard.backends.fused.wide_backward import changes, column_changes, row_changes


@triton.jit(do_not_specialize=COUNTS)
def product_rows(
    query_parts, query_squares, key_parts, key_across, key_squares, width, bias, value_parts, grad_parts, rows,
    grad_query, grad_width,
    inner, queries, keys, query_columns, key_columns, blocks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIMS: tl.constexpr, LINK: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries (DIM, columns) and of their widths (columns,)."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIMS)
    v = tl.arange(0, BV)
    bias, width = start(bias, batch, inner), start(width, batch, inner)
    value_parts, grad_parts = start(value_parts, batch, inner), start(grad_parts, batch, inner)
    key_parts, key_across = start(key_parts, batch, inner), start(key_across, batch, inner)
    key_squares = start(key_squares, batch, inner)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    rows += batch * 3 * query_columns
    peak = tl.load(rows + m)
    inverse = tl.load(row_of(rows, 1, query_columns) + m)
    own = tl.load(row_of(rows, 2, query_columns) + m)
    own_square = tl.load(start(query_squares, batch, inner) + m)
    query_parts = start(query_parts, batch, inner)
    q, q_rest = load_rows(query_parts, m, d, query_columns, DIMS)
    grad, grad_rest = load_rows(grad_parts, m, v, query_columns, VALUE_DIMS)
    products = tl.zeros([BM, DIMS], tl.float32)
    pulls = tl.zeros([BM], tl.float32)
    widened = tl.zeros([BM], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        k, k_rest = load_rows(key_parts, n, d, key_columns, DIMS)
        squared = own_square[:, None] + tl.load(key_squares + n)[None, :]
        squared = tl.maximum(squared - 2.0 * product_of_parts(q, q_rest, k, k_rest), 0.0)
        if VALUE_DIMS == BV:
            value, value_rest = load_rows(value_parts, n, v, key_columns, VALUE_DIMS)
            change = product_of_parts(grad, grad_rest, value, value_rest)
        else:
            change = changes(grad_parts, value_parts, m, n, query_columns, key_columns, VALUE_DIMS, BM, BN, BV)
        lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        change, z = row_changes(
            change - own[:, None], squared, scale, inverse, peak, lift, n[None, :] - m[:, None],
            first - (block * BM + BM - 1), first + BN - 1 - block * BM, band, LINK, HAS_BAND,
        )  # fmt: skip
        # A forbidden pair has gradient 0 and may be infinitely far: 0 * inf is left out.
        widened += tl.sum(tl.where(change == 0.0, 0.0, change * z), 1)
        change = per_squared(change, scale[:, None], LINK)
        pulls += tl.sum(change, 1)
        head, rest = split(change)
        across, across_rest = load_across(key_across, n, d, key_columns, DIMS)
        products += product_of_parts(head, rest, across, across_rest)
    exists = m < queries
    tl.store(grad_width + batch * query_columns + m, -2.0 * widened * scale, mask=exists)
    total = 2.0 * (_whole(query_parts, m, d, query_columns, DIMS) * pulls[:, None] - products)
    place = row_of(grad_query, batch * DIM + d, query_columns)[None, :] + m[:, None]
    tl.store(place, total, mask=exists[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def product_columns(
    query_parts, query_across, query_squares, key_parts, key_squares, width, bias, value_parts, grad_parts,
    grad_across, rows, grad_key, grad_value, grad_bias,
    inner, queries, keys, query_columns, key_columns, blocks, chunks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_DIMS: tl.constexpr, LINK: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BN keys (DIM, columns), of BV of their values (VALUE_DIM, columns), of their bias (columns,)."""
    chunk = tl.program_id(0) % chunks
    batch, block = (tl.program_id(0) // chunks // blocks).to(tl.int64), tl.program_id(0) // chunks % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    v = chunk * BV + tl.arange(0, BV)
    bias, width = start(bias, batch, inner), start(width, batch, inner)
    value_parts = start(value_parts, batch, inner)
    grad_parts, grad_across = start(grad_parts, batch, inner), start(grad_across, batch, inner)
    query_parts, query_across = start(query_parts, batch, inner), start(query_across, batch, inner)
    query_squares = start(query_squares, batch, inner)
    rows += batch * 3 * query_columns
    lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
    own_square = tl.load(start(key_squares, batch, inner) + n)
    key_parts = start(key_parts, batch, inner)
    k, k_rest = load_rows(key_parts, n, d, key_columns, DIMS)
    value, value_rest = load_rows(value_parts, n, v, key_columns, VALUE_DIMS)
    products = tl.zeros([BN, DIMS], tl.float32)
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
        q, q_rest = load_rows(query_parts, m, d, query_columns, DIMS)
        squared = own_square[:, None] + tl.load(query_squares + m)[None, :]
        squared = tl.maximum(squared - 2.0 * product_of_parts(k, k_rest, q, q_rest), 0.0)
        if VALUE_DIMS == BV:
            grad, grad_rest = load_rows(grad_parts, m, v, query_columns, VALUE_DIMS)
            change = product_of_parts(value, value_rest, grad, grad_rest)
        else:
            change = changes(value_parts, grad_parts, n, m, key_columns, query_columns, VALUE_DIMS, BN, BM, BV)
        # Beyond the last key and query squares are infinite, and weights 0.
        weight, pull = column_changes(
            squared, scale, inverse, peak, lift, squared < INFINITY, n[:, None] - m[None, :],
            block * BN - (first + BM - 1), block * BN + BN - 1 - first, band, LINK, HAS_BAND,
        )  # fmt: skip
        change -= own[None, :]
        head, rest = split(weight)
        across, across_rest = load_across(grad_across, m, v, query_columns, VALUE_DIMS)
        pooled += product_of_parts(head, rest, across, across_rest)
        lifted += tl.sum(change * weight, 1)
        change *= pull
        pulls += tl.sum(change, 1)
        head, rest = split(change)
        other, other_rest = load_across(query_across, m, d, query_columns, DIMS)
        products += product_of_parts(head, rest, other, other_rest)
    exists = n < keys
    to_value = row_of(grad_value, batch * VALUE_DIM + v, key_columns)[None, :] + n[:, None]
    tl.store(to_value, pooled, mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(grad_bias + batch * key_columns + n, lifted, mask=exists)
        total = 2.0 * (_whole(key_parts, n, d, key_columns, DIMS) * pulls[:, None] - products)
        to_key = row_of(grad_key, batch * DIM + d, key_columns)[None, :] + n[:, None]
        tl.store(to_key, total, mask=exists[:, None] & (d < DIM)[None, :])


@triton.jit
def _whole(parts, t, x, columns, WIDTH: tl.constexpr):
    """Tokens (tokens, numbers) from their parts, read again: kept through a loop they would fill the registers."""
    place = parts + row_of(0, t, WIDTH)[:, None] + x[None, :]
    rest = tl.load(place + row_of(0, columns, WIDTH), cache_modifier=".cg")
    return tl.load(place, cache_modifier=".cg") + rest
