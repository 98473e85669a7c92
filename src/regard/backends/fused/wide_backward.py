"""The backward kernels for many dimensions or values by differences: tiles of pairs, whose sums are matrix products.

The same gradients as in `narrow_backward`, by rows and by columns. Where MARKED, `product_backward` has found them but
for queries that are too far for products, marked by infinite squares: theirs are added here.
"""
# ruff: noqa: N803, SIM102 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, per_squared, scales, weight_and_pull
from regard.backends.fused.parts import load_across, load_rows, product_of_parts, split
from regard.backends.fused.tiles import COUNTS, allows, crosses, differences, keys_of, queries_of, row_of, start


@triton.jit
def changes(left, right, a, b, left_columns, right_columns, WIDTH: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
            BV: tl.constexpr):  # fmt: skip
    """dO v' for a tile (BA, BB), or v dO', from rows a of the one and b of the other."""
    change = tl.zeros([BA, BB], tl.float32)
    for first in tl.static_range(0, WIDTH, BV):
        v = first + tl.arange(0, BV)
        one, one_rest = load_rows(left, a, v, left_columns, WIDTH)
        other, other_rest = load_rows(right, b, v, right_columns, WIDTH)
        change += product_of_parts(one, one_rest, other, other_rest)
    return change


@triton.jit
def row_changes(change, squared, scale, inverse, peak, lift, offset, least, most, band, LINK: tl.constexpr,
                HAS_BAND: tl.constexpr):  # fmt: skip
    """From dO v' - own to gradients of z, of which forbidden pairs have 0, and z."""
    _, pull, z = weight_and_pull(squared, scale[:, None], lift[None, :], peak[:, None], LINK)
    pull *= inverse[:, None]
    if HAS_BAND:
        if crosses(least, most, band):
            pull = tl.where(allows(offset, band), pull, 0.0)
    return change * pull, z


@triton.jit
def column_changes(squared, scale, inverse, peak, lift, allowed, offset, least, most, band, LINK: tl.constexpr,
                   HAS_BAND: tl.constexpr):  # fmt: skip
    """Weights, and what gradients of scores are multiplied with to be those of squared distances."""
    weight, pull, _ = weight_and_pull(squared, scale[None, :], lift[:, None], peak[None, :], LINK)
    if HAS_BAND:
        if crosses(least, most, band):
            allowed &= allows(offset, band)
    weight = tl.where(allowed, weight * inverse[None, :], 0.0)
    return weight, tl.where(allowed, per_squared(pull * inverse[None, :], scale[None, :], LINK), 0.0)


@triton.jit(do_not_specialize=COUNTS)
def wide_rows(
    query, key, width, bias, value_parts, grad_parts, squares, rows, grad_query, grad_width,
    inner, queries, keys, query_columns, key_columns, blocks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIMS: tl.constexpr, LINK: tl.constexpr, MARKED: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BM queries (DIM, columns) and of their widths (columns,)."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIMS)
    wanted = m < queries
    query_step, key_step = query[4], key[4]
    query = start(query, batch, inner) + m.to(tl.int64) * query[3]
    keys_place, key_stride = start(key, batch, inner), key[3]
    bias, width = start(bias, batch, inner), start(width, batch, inner)
    value_parts, grad_parts = start(value_parts, batch, inner), start(grad_parts, batch, inner)
    begin, end = keys_of(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    if MARKED:
        wanted &= tl.load(start(squares, batch, inner) + m) == INFINITY
        end = tl.where(tl.max(wanted.to(tl.int32), 0) == 1, end, begin)
    scale = scales(width, m, queries, LINK, PER_QUERY, BM)
    rows += batch * 3 * query_columns
    peak = tl.load(rows + m)
    inverse = tl.load(row_of(rows, 1, query_columns) + m)
    own = tl.load(row_of(rows, 2, query_columns) + m)
    pulled = tl.zeros([BM, DIMS], tl.float32)
    widened = tl.zeros([BM], tl.float32)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        key_place = keys_place + n.to(tl.int64) * key_stride
        squared = differences(query, key_place, m, n, query_step, key_step, queries, keys, DIM, BM, BN)
        change = changes(grad_parts, value_parts, m, n, query_columns, key_columns, VALUE_DIMS, BM, BN, BV)
        lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        change, z = row_changes(
            change - own[:, None], squared, scale, inverse, peak, lift, n[None, :] - m[:, None],
            first - (block * BM + BM - 1), first + BN - 1 - block * BM, band, LINK, HAS_BAND,
        )  # fmt: skip
        change = tl.where((n < keys)[None, :], change, 0.0)
        # A forbidden pair has gradient 0 and may be infinitely far: 0 * inf is left out.
        widened += tl.sum(tl.where(change == 0.0, 0.0, change * z), 1)
        change = per_squared(change, scale[:, None], LINK)
        for one in range(DIM):
            to = tl.load(row_of(query, one, query_step), mask=m < queries, other=0.0).to(tl.float32)[:, None]
            to -= tl.load(row_of(key_place, one, key_step), mask=n < keys, other=0.0).to(tl.float32)[None, :]
            pulled += tl.where((d == one)[None, :], tl.sum(change * to, 1)[:, None], 0.0)
    tl.store(grad_width + batch * query_columns + m, -2.0 * widened * scale, mask=wanted)
    place = row_of(grad_query, batch * DIM + d, query_columns)[None, :] + m[:, None]
    tl.store(place, 2.0 * pulled, mask=wanted[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def wide_columns(
    query, key, width, bias, value_parts, grad_parts, grad_across, squares, far, rows, grad_key, grad_value, grad_bias,
    inner, queries, keys, query_columns, key_columns, blocks, chunks, far_blocks, band,
    DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_DIMS: tl.constexpr, LINK: tl.constexpr,
    MARKED: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of BN keys (DIM, columns), of BV of their values (VALUE_DIM, columns), of their bias (columns,)."""
    chunk = tl.program_id(0) % chunks
    batch, block = (tl.program_id(0) // chunks // blocks).to(tl.int64), tl.program_id(0) // chunks % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    v = chunk * BV + tl.arange(0, BV)
    exists = n < keys
    query_step, key_step = query[4], key[4]
    key_place = start(key, batch, inner) + n.to(tl.int64) * key[3]
    queries_place, query_stride = start(query, batch, inner), query[3]
    bias, width, squares = start(bias, batch, inner), start(width, batch, inner), start(squares, batch, inner)
    value_parts = start(value_parts, batch, inner)
    grad_parts, grad_across = start(grad_parts, batch, inner), start(grad_across, batch, inner)
    begin, end = queries_of(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    if MARKED:
        end = tl.where(_are_some(start(far, batch, inner), far_blocks), end, begin)
    rows += batch * 3 * query_columns
    lift = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
    pulled = tl.zeros([BN, DIMS], tl.float32)
    lifted = tl.zeros([BN], tl.float32)
    pooled = tl.zeros([BN, BV], tl.float32)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        wanted = m < queries
        if MARKED:
            wanted &= tl.load(squares + m) == INFINITY
        if tl.max(wanted.to(tl.int32), 0) == 1:
            scale = scales(width, m, queries, LINK, PER_QUERY, BM)
            peak = tl.load(rows + m)
            inverse = tl.load(row_of(rows, 1, query_columns) + m)
            own = tl.load(row_of(rows, 2, query_columns) + m)
            place = queries_place + m.to(tl.int64) * query_stride
            squared = differences(key_place, place, n, m, key_step, query_step, keys, queries, DIM, BN, BM)
            change = changes(value_parts, grad_parts, n, m, key_columns, query_columns, VALUE_DIMS, BN, BM, BV)
            weight, pull = column_changes(
                squared, scale, inverse, peak, lift, exists[:, None] & wanted[None, :], n[:, None] - m[None, :],
                block * BN - (first + BM - 1), block * BN + BN - 1 - first, band, LINK, HAS_BAND,
            )  # fmt: skip
            change -= own[None, :]
            lifted += tl.sum(change * weight, 1)
            head, rest = split(weight)
            across, across_rest = load_across(grad_across, m, v, query_columns, VALUE_DIMS)
            pooled += product_of_parts(head, rest, across, across_rest)
            change *= pull
            for one in range(DIM):
                to = tl.load(row_of(key_place, one, key_step), mask=exists, other=0.0).to(tl.float32)[:, None]
                to -= tl.load(row_of(place, one, query_step), mask=m < queries, other=0.0).to(tl.float32)[None, :]
                pulled += tl.where((d == one)[None, :], tl.sum(change * to, 1)[:, None], 0.0)
    if MARKED:
        exists &= end > begin  # nothing to add
    to_value = row_of(grad_value, batch * VALUE_DIM + v, key_columns)[None, :] + n[:, None]
    _store(to_value, pooled, exists[:, None] & (v < VALUE_DIM)[None, :], MARKED)
    if chunk == 0:
        _store(grad_bias + batch * key_columns + n, lifted, exists, MARKED)
        to_key = row_of(grad_key, batch * DIM + d, key_columns)[None, :] + n[:, None]
        _store(to_key, 2.0 * pulled, exists[:, None] & (d < DIM)[None, :], MARKED)


@triton.jit
def _are_some(flags, count):
    """Whether a flag (count,) is up."""
    found = tl.zeros([256], tl.int32)
    for first in range(0, count, 256):
        some = first + tl.arange(0, 256)
        found = tl.maximum(found, tl.load(flags + some, mask=some < count, other=0))
    return tl.max(found, 0) != 0


@triton.jit
def _store(place, found, mask, ADDED: tl.constexpr):
    """Write, or add to what is there: every place has one owner."""
    if ADDED:
        found += tl.load(place, mask=mask, other=0.0)
    tl.store(place, found, mask=mask)
