"""The kernels of distances for few dimensions and few values: a thread for each token, all sums in its registers.

The forward kernel needs no running maximum, because a log-kernel is at most 0 and so is the bias. It flags a row for
`tiled_forward.difference_forward` if the mass is so small that terms may have been lost, if the mass is NaN, or if the
square of the width is not a normal number. For compact kernels without a bias it checks the width only, because their
mass is 0 or far above the smallest float32. A boxcar squares no width, so without a bias it flags no row.

With weights P, the gradient of the scores is dS = P (dO v' - delta), where delta = dO'o - dlog_mass. The backward
kernels recompute P from peak and inverse mass of each row; dO v' - delta is their `d_weight`. There is one kernel for
queries and one for keys, so each sum has one owner and the result is deterministic.
"""
# ruff: noqa: N803, RUF005, SIM102 - Triton: capital names for constants, tuples by +, no `and` with a constant

import math

import torch
import triton
import triton.language as tl

from regard.backends.custom_op import Gradients
from regard.backends.triton.distance.inputs import BackwardRows, Inputs, KernelResults
from regard.backends.triton.distance.profiles import (
    MAX_SCALE,
    MIN_MASS,
    kernel_value,
    per_squared_distance,
    row_parameter,
    squared_factor,
    weight_and_slope,
)
from regard.backends.triton.launch import (
    Tile,
    batch_operand,
    cdiv,
    launch,
    pick_tile,
    token_operand,
    transposed,
)
from regard.backends.triton.primitives import (
    UNSPECIALIZED,
    batch_pointer,
    cuts_band,
    in_band,
    key_range,
    query_range,
    row_pointer,
)

# The largest tile that fills the GPU is used. `python -m benchmarks.tiles` measures the tiles on a GPU.
FORWARD_TILES = (Tile(256, 64, 4), Tile(128, 64, 4))
BACKWARD_TILES = (Tile(256, 8, 4), Tile(128, 8, 4))


# --- Forward ---------------------------------------------------------------------------------------------------


def forward(inputs: Inputs, results: KernelResults) -> None:
    """Write the results of a problem."""
    key, value = transposed(inputs.key, math.inf), transposed(inputs.value, 0.0)
    tile = pick_tile(FORWARD_TILES, inputs.queries, inputs.batch_size)
    blocks = cdiv(inputs.queries, tile.queries)
    launch(
        narrow_forward, blocks * inputs.batch_size,
        token_operand(inputs.query), batch_operand(key), batch_operand(inputs.width), batch_operand(value),
        batch_operand(inputs.bias_or_dummy(key)), *results, **inputs.pair_arguments(), padded_keys=key.shape[-1],
        blocks=blocks, VALUE_DIM=inputs.value_dim, COMPACT=inputs.kernel.is_compact, tile=tile,
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def narrow_forward(
    query, key, width, value, bias, output, log_mass, row_stats,
    inner, queries, keys, padded_keys, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr, COMPACT: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write output, log_mass and row_stats of BM queries.

    key, value: transposed; keys beyond the last one are infinite. row_stats: see `inputs.ROW_STATS`.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    exists = m < queries
    query_tokens = batch_pointer(query, batch, inner) + m.to(tl.int64) * query[3]
    key = batch_pointer(key, batch, inner)
    value, bias = batch_pointer(value, batch, inner), batch_pointer(bias, batch, inner)
    width = batch_pointer(width, batch, inner)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    factor = squared_factor(scale, PROFILE)
    q = ()
    for d in tl.static_range(DIM):
        q = q + (tl.load(query_tokens + d * query[4], mask=exists, other=0.0).to(tl.float32),)
    weighted_sums = ()
    for _ in tl.static_range(VALUE_DIM):
        weighted_sums = weighted_sums + (tl.zeros([BM], tl.float32),)
    total = tl.zeros([BM], tl.float32)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        # Beyond the last key, distances are infinite and the mass is 0, or NaN if the query is infinite.
        squared = tl.zeros([BN, BM], tl.float32)
        for d in tl.static_range(DIM):
            difference = q[d][None, :] - tl.load(row_pointer(key, d, padded_keys) + first + n)[:, None]
            squared = tl.fma(difference, difference, squared)
        key_bias = tl.load(bias + first + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        mass = kernel_value(squared, factor[None, :], key_bias[:, None], PROFILE)
        if COMPACT and not HAS_BIAS:  # a mass of NaN is not flagged, so infinite queries need the mask here
            if first + BN > keys:
                mass = tl.where((first + n < keys)[:, None], mass, 0.0)
        if HAS_BAND:
            if cuts_band(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                mass = tl.where(in_band((first + n)[:, None] - m[None, :], band), mass, 0.0)
        total += tl.sum(mass, 0)
        new_sums = ()
        for v in tl.static_range(VALUE_DIM):
            column = tl.load(row_pointer(value, v, padded_keys) + first + n)
            new_sums = new_sums + (weighted_sums[v] + tl.sum(mass * column[:, None], 0),)
        weighted_sums = new_sums
    redo = ~(total >= MIN_MASS)  # True for NaN
    if COMPACT and not HAS_BIAS:
        # False for every row: without a bias the mass of a compact kernel is 0 or far above MIN_MASS.
        redo = total < 0.0
    if PROFILE != "boxcar":
        redo |= (scale > MAX_SCALE) | (scale < 1 / MAX_SCALE)
    inverse = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    row = batch.to(tl.int64) * queries + m
    for v in tl.static_range(VALUE_DIM):
        tl.store(output + row * VALUE_DIM + v, weighted_sums[v] * inverse, mask=exists)
    tl.store(log_mass + row, tl.log(total), mask=exists)
    tl.store(row_stats + row * 3, tl.zeros([BM], tl.float32), mask=exists)
    tl.store(row_stats + row * 3 + 1, inverse, mask=exists)
    tl.store(row_stats + row * 3 + 2, redo.to(tl.float32), mask=exists)


# --- Backward --------------------------------------------------------------------------------------------------


def backward(inputs: Inputs, per_query: BackwardRows, *, for_queries: bool, for_keys: bool) -> Gradients:
    """Return the gradients, each (outer, inner, tokens, dim); the gradient of the bias is (outer, inner, 1, keys).

    Args:
        inputs: the problem.
        per_query: what is known of each query.
        for_queries: whether to compute the gradients of query and width.
        for_keys: whether to compute the gradients of key, value and bias.
    """
    query, key, value = transposed(inputs.query, 0.0), transposed(inputs.key, math.inf), transposed(inputs.value, 0.0)
    delta = (per_query.d_output.float() * per_query.output.float()).sum(-1, keepdim=True) - per_query.d_log_mass
    row_terms = transposed(torch.cat([per_query.row_stats[..., :2], delta], -1), 0.0)
    operands = [batch_operand(x) for x in (query, key, inputs.width, value, inputs.bias_or_dummy(key))]
    operands += [transposed(per_query.d_output, 0.0), row_terms]
    arguments = inputs.pair_arguments() | inputs.padded_lengths() | {"VALUE_DIM": inputs.value_dim}
    d_query = d_width = d_key = d_value = d_bias = None
    if for_queries:
        d_query, d_width = inputs.empty_for_queries(inputs.dim), inputs.empty_for_queries(1)
        tile = pick_tile(BACKWARD_TILES, inputs.queries, inputs.batch_size)
        blocks = cdiv(inputs.queries, tile.queries)
        launch(
            narrow_query_gradients, blocks * inputs.batch_size, *operands, d_query, d_width,
            **arguments, blocks=blocks, tile=tile,
        )  # fmt: skip
        d_query, d_width = (x[..., : inputs.queries].mT for x in (d_query, d_width))
    if for_keys:
        d_key, d_value = inputs.empty_for_keys(inputs.dim), inputs.empty_for_keys(inputs.value_dim)
        d_bias = inputs.empty_for_keys(1)
        tile = pick_tile(BACKWARD_TILES, inputs.keys, inputs.batch_size)
        tile = tile._replace(queries=tile.keys, keys=tile.queries)  # a thread for each key
        blocks = cdiv(inputs.keys, tile.keys)
        launch(
            narrow_key_gradients, blocks * inputs.batch_size, *operands, d_key, d_value, d_bias,
            **arguments, blocks=blocks, tile=tile,
        )  # fmt: skip
        d_key, d_value, d_bias = (
            d_key[..., : inputs.keys].mT,
            d_value[..., : inputs.keys].mT,
            d_bias[..., : inputs.keys],
        )
    return Gradients((d_query, d_key, d_width), d_value, d_bias)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def narrow_query_gradients(
    query, key, width, value, bias, d_output, row_terms, d_query, d_width,
    inner, queries, keys, padded_queries, padded_keys, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BM queries (DIM, padded_queries) and of their widths (padded_queries,).

    query, key, value, d_output: transposed.
    row_terms: peak, inverse mass and delta of each query, (3, padded_queries) for each batch element.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    exists = m < queries
    query, key = batch_pointer(query, batch, inner), batch_pointer(key, batch, inner)
    value, bias = batch_pointer(value, batch, inner), batch_pointer(bias, batch, inner)
    width = batch_pointer(width, batch, inner)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    row_terms += batch * 3 * padded_queries
    peak = tl.load(row_terms + m, mask=exists, other=0.0)
    inverse = tl.load(row_pointer(row_terms, 1, padded_queries) + m, mask=exists, other=0.0)
    delta = tl.load(row_pointer(row_terms, 2, padded_queries) + m, mask=exists, other=0.0)
    q, d_q = (), ()
    for d in tl.static_range(DIM):
        q = q + (tl.load(row_pointer(query, d, padded_queries) + m, mask=exists, other=0.0),)
        d_q = d_q + (tl.zeros([BM], tl.float32),)
    d_o = ()
    for v in tl.static_range(VALUE_DIM):
        pointers = row_pointer(d_output, batch * VALUE_DIM + v, padded_queries) + m
        d_o = d_o + (tl.load(pointers, mask=exists, other=0.0),)
    width_sum = tl.zeros([BM], tl.float32)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        k = ()
        squared = tl.zeros([BN, BM], tl.float32)
        for d in tl.static_range(DIM):
            k = k + (tl.load(row_pointer(key, d, padded_keys) + n, mask=n < keys, other=0.0),)
            difference = q[d][None, :] - k[d][:, None]
            squared = tl.fma(difference, difference, squared)
        d_weight = tl.zeros([BN, BM], tl.float32) - delta[None, :]
        for v in tl.static_range(VALUE_DIM):
            d_weight += d_o[v][None, :] * tl.load(row_pointer(value, v, padded_keys) + n)[:, None]
        key_bias = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        _, slope, z = weight_and_slope(squared, scale[None, :], key_bias[:, None], peak[None, :], PROFILE)
        slope = tl.where((n < keys)[:, None], slope, 0.0)
        if HAS_BAND:
            if cuts_band(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                slope = tl.where(in_band(n[:, None] - m[None, :], band), slope, 0.0)
        d_z = d_weight * slope
        # A forbidden pair has gradient 0 and its distance may be infinite, and 0 * inf is NaN.
        width_sum += tl.sum(tl.where(d_z == 0.0, 0.0, d_z * z), 0)
        new_d_q = ()
        for d in tl.static_range(DIM):
            new_d_q = new_d_q + (d_q[d] + tl.sum(d_z * (q[d][None, :] - k[d][:, None]), 0),)
        d_q = new_d_q
    tl.store(d_width + batch * padded_queries + m, -2.0 * width_sum * inverse * scale, mask=exists)
    for d in tl.static_range(DIM):
        gradient = per_squared_distance(2.0 * d_q[d] * inverse, scale, PROFILE)
        tl.store(row_pointer(d_query, batch * DIM + d, padded_queries) + m, gradient, mask=exists)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def narrow_key_gradients(
    query, key, width, value, bias, d_output, row_terms, d_key, d_value, d_bias,
    inner, queries, keys, padded_queries, padded_keys, blocks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BN keys (DIM, padded_keys), their values (VALUE_DIM, padded_keys) and bias (padded_keys,).

    The arguments are those of `narrow_query_gradients`.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    exists = n < keys
    query, key = batch_pointer(query, batch, inner), batch_pointer(key, batch, inner)
    value, bias = batch_pointer(value, batch, inner), batch_pointer(bias, batch, inner)
    width = batch_pointer(width, batch, inner)
    row_terms += batch * 3 * padded_queries
    key_bias = tl.load(bias + n, mask=exists, other=0.0) if HAS_BIAS else tl.zeros([BN], tl.float32)
    k, d_k = (), ()
    for d in tl.static_range(DIM):
        k = k + (tl.load(row_pointer(key, d, padded_keys) + n, mask=exists, other=0.0),)
        d_k = d_k + (tl.zeros([BN], tl.float32),)
    values, d_v = (), ()
    for v in tl.static_range(VALUE_DIM):
        values = values + (tl.load(row_pointer(value, v, padded_keys) + n, mask=exists, other=0.0),)
        d_v = d_v + (tl.zeros([BN], tl.float32),)
    d_key_bias = tl.zeros([BN], tl.float32)
    begin, end = query_range(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
        peak = tl.load(row_terms + m)
        inverse = tl.load(row_pointer(row_terms, 1, padded_queries) + m)
        delta = tl.load(row_pointer(row_terms, 2, padded_queries) + m)
        q, d_o = (), ()
        squared = tl.zeros([BM, BN], tl.float32)
        for d in tl.static_range(DIM):
            q = q + (tl.load(row_pointer(query, d, padded_queries) + m),)
            difference = q[d][:, None] - k[d][None, :]
            squared = tl.fma(difference, difference, squared)
        d_weight = tl.zeros([BM, BN], tl.float32) - delta[:, None]
        for v in tl.static_range(VALUE_DIM):
            d_o = d_o + (tl.load(row_pointer(d_output, batch * VALUE_DIM + v, padded_queries) + m),)
            d_weight += d_o[v][:, None] * values[v][None, :]
        weight, slope, _ = weight_and_slope(squared, scale[:, None], key_bias[None, :], peak[:, None], PROFILE)
        weight *= inverse[:, None]
        slope = per_squared_distance(slope * inverse[:, None], scale[:, None], PROFILE)
        if HAS_BAND:
            if cuts_band(block * BN - (first + BM - 1), block * BN + BN - 1 - first, band):
                is_allowed = in_band(n[None, :] - m[:, None], band)
                weight = tl.where(is_allowed, weight, 0.0)
                slope = tl.where(is_allowed, slope, 0.0)
        d_key_bias += tl.sum(d_weight * weight, 0)
        d_squared = d_weight * slope
        new_d_v = ()
        for v in tl.static_range(VALUE_DIM):
            new_d_v = new_d_v + (d_v[v] + tl.sum(weight * d_o[v][:, None], 0),)
        d_v = new_d_v
        new_d_k = ()
        for d in tl.static_range(DIM):
            new_d_k = new_d_k + (d_k[d] + tl.sum(d_squared * (k[d][None, :] - q[d][:, None]), 0),)
        d_k = new_d_k
    tl.store(d_bias + batch * padded_keys + n, d_key_bias, mask=exists)
    for d in tl.static_range(DIM):
        tl.store(row_pointer(d_key, batch * DIM + d, padded_keys) + n, 2.0 * d_k[d], mask=exists)
    for v in tl.static_range(VALUE_DIM):
        tl.store(row_pointer(d_value, batch * VALUE_DIM + v, padded_keys) + n, d_v[v], mask=exists)
