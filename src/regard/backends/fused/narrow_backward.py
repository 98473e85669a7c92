"""The backward kernels for few dimensions and few values: a thread for each query, then a thread for each key.

With weights P: dS = P (dO v' - dO'o + dlog_mass), each tile's weights recomputed from its `rows`: peak, inverse mass
and dO'o - dlog_mass of each query, as columns. Two
kernels, so that every sum has one owner and no order of arrival can change it.
"""
# ruff: noqa: N803, RUF005, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import per_squared, scales, weight_and_pull
from regard.backends.fused.tiles import COUNTS, allows, crosses, keys_of, queries_of, row_of, start


@triton.jit(do_not_specialize=COUNTS)
def narrow_rows(
    query, key, width, value, bias, grad_output, rows, grad_query, grad_width,
    inner, queries, keys, query_columns, key_columns, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries (DIM, columns) and of their widths (columns,)."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    exists = m < queries
    query, key = start(query, batch, inner), start(key, batch, inner)
    value, bias = start(value, batch, inner), start(bias, batch, inner)
    width = start(width, batch, inner)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    rows += batch * 3 * query_columns
    peak = tl.load(rows + m, mask=exists, other=0.0)
    inverse = tl.load(row_of(rows, 1, query_columns) + m, mask=exists, other=0.0)
    own = tl.load(row_of(rows, 2, query_columns) + m, mask=exists, other=0.0)
    q, pulled = (), ()
    for d in tl.static_range(DIM):
        q = q + (tl.load(row_of(query, d, query_columns) + m, mask=exists, other=0.0),)
        pulled = pulled + (tl.zeros([BM], tl.float32),)
    grad = ()
    for v in tl.static_range(VALUE_DIM):
        place = row_of(grad_output, batch * VALUE_DIM + v, query_columns) + m
        grad = grad + (tl.load(place, mask=exists, other=0.0),)
    widened = tl.zeros([BM], tl.float32)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        k = ()
        squared = tl.zeros([BN, BM], tl.float32)
        for d in tl.static_range(DIM):
            k = k + (tl.load(row_of(key, d, key_columns) + n, mask=n < keys, other=0.0),)
            difference = q[d][None, :] - k[d][:, None]
            squared = tl.fma(difference, difference, squared)
        change = tl.zeros([BN, BM], tl.float32) - own[None, :]
        for v in tl.static_range(VALUE_DIM):
            change += grad[v][None, :] * tl.load(row_of(value, v, key_columns) + n)[:, None]
        lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        _, pull, z = weight_and_pull(squared, scale[None, :], lift[:, None], peak[None, :], LINK)
        pull = tl.where((n < keys)[:, None], pull, 0.0)
        if HAS_BAND:
            if crosses(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                pull = tl.where(allows(n[:, None] - m[None, :], band), pull, 0.0)
        change *= pull
        # A forbidden pair has gradient 0 and may be infinitely far: 0 * inf is left out.
        widened += tl.sum(tl.where(change == 0.0, 0.0, change * z), 0)
        sums = ()
        for d in tl.static_range(DIM):
            sums = sums + (pulled[d] + tl.sum(change * (q[d][None, :] - k[d][:, None]), 0),)
        pulled = sums
    tl.store(grad_width + batch * query_columns + m, -2.0 * widened * inverse * scale, mask=exists)
    for d in tl.static_range(DIM):
        total = per_squared(2.0 * pulled[d] * inverse, scale, LINK)
        tl.store(row_of(grad_query, batch * DIM + d, query_columns) + m, total, mask=exists)


@triton.jit(do_not_specialize=COUNTS)
def narrow_columns(
    query, key, width, value, bias, grad_output, rows, grad_key, grad_value, grad_bias,
    inner, queries, keys, query_columns, key_columns, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, LINK: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradients of BN keys (DIM, columns), their values (VALUE_DIM, columns) and their bias (columns,)."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    exists = n < keys
    query, key = start(query, batch, inner), start(key, batch, inner)
    value, bias = start(value, batch, inner), start(bias, batch, inner)
    width = start(width, batch, inner)
    rows += batch * 3 * query_columns
    lift = tl.load(bias + n, mask=exists, other=0.0) if HAS_BIAS else tl.zeros([BN], tl.float32)
    k, pulled = (), ()
    for d in tl.static_range(DIM):
        k = k + (tl.load(row_of(key, d, key_columns) + n, mask=exists, other=0.0),)
        pulled = pulled + (tl.zeros([BN], tl.float32),)
    values, pooled = (), ()
    for v in tl.static_range(VALUE_DIM):
        values = values + (tl.load(row_of(value, v, key_columns) + n, mask=exists, other=0.0),)
        pooled = pooled + (tl.zeros([BN], tl.float32),)
    lifted = tl.zeros([BN], tl.float32)
    begin, end = queries_of(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        scale = scales(width, m, queries, LINK, PER_QUERY, BM)
        peak = tl.load(rows + m)
        inverse = tl.load(row_of(rows, 1, query_columns) + m)
        own = tl.load(row_of(rows, 2, query_columns) + m)
        q, grad = (), ()
        squared = tl.zeros([BM, BN], tl.float32)
        for d in tl.static_range(DIM):
            q = q + (tl.load(row_of(query, d, query_columns) + m),)
            difference = q[d][:, None] - k[d][None, :]
            squared = tl.fma(difference, difference, squared)
        change = tl.zeros([BM, BN], tl.float32) - own[:, None]
        for v in tl.static_range(VALUE_DIM):
            grad = grad + (tl.load(row_of(grad_output, batch * VALUE_DIM + v, query_columns) + m),)
            change += grad[v][:, None] * values[v][None, :]
        weight, pull, _ = weight_and_pull(squared, scale[:, None], lift[None, :], peak[:, None], LINK)
        weight *= inverse[:, None]
        pull = per_squared(pull * inverse[:, None], scale[:, None], LINK)
        if HAS_BAND:
            if crosses(block * BN - (first + BM - 1), block * BN + BN - 1 - first, band):
                allowed = allows(n[None, :] - m[:, None], band)
                weight = tl.where(allowed, weight, 0.0)
                pull = tl.where(allowed, pull, 0.0)
        lifted += tl.sum(change * weight, 0)
        change *= pull
        sums = ()
        for v in tl.static_range(VALUE_DIM):
            sums = sums + (pooled[v] + tl.sum(weight * grad[v][:, None], 0),)
        pooled = sums
        sums = ()
        for d in tl.static_range(DIM):
            sums = sums + (pulled[d] + tl.sum(change * (k[d][None, :] - q[d][:, None]), 0),)
        pulled = sums
    tl.store(grad_bias + batch * key_columns + n, lifted, mask=exists)
    for d in tl.static_range(DIM):
        tl.store(row_of(grad_key, batch * DIM + d, key_columns) + n, 2.0 * pulled[d], mask=exists)
    for v in tl.static_range(VALUE_DIM):
        tl.store(row_of(grad_value, batch * VALUE_DIM + v, key_columns) + n, pooled[v], mask=exists)
