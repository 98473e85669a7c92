"""The forward kernels of distances for many dimensions or values: tiles of pairs, summed by matrix products.

`difference_forward` is exact for every problem. It sums squared differences dimension by dimension, and it computes the
softmax in the log domain with a running maximum, so a query a million widths away gets the value of its nearest key. It
runs the problems that no faster kernel supports, and the rows that a faster kernel flagged.

`product_forward` computes |q - k|^2 = |q|^2 + |k|^2 - 2 q'k, with q and k relative to the centre of the keys, by TF32
products (`primitives`). The error is 2^-22 of |q|^2 + |k|^2. It flags a row if this error is too large for its scores,
if its mass is tiny or NaN, or if its width cannot be squared.
"""
# ruff: noqa: N803, SIM102 - Triton: capital names for constants, no `and` with a constant

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.distance.inputs import Inputs
from regard.backends.triton.distance.narrow import MAX_SCALE, MIN_MASS
from regard.backends.triton.distance.profiles import exponent_scale, log_kernel, row_scale
from regard.backends.triton.distance.split import BLOCKS_PER_LOAD, MAX_PRODUCT_TERM, forward_parts, value_tile
from regard.backends.triton.launch import (
    Tile,
    batch_strides,
    cdiv,
    launch,
    padded_length,
    padded_width,
    token_strides,
    transposed,
)
from regard.backends.triton.primitives import (
    INFINITY,
    LN2,
    UNSPECIALIZED,
    batch_pointer,
    cuts_band,
    dot_outside,
    dot_tf32x3,
    in_band,
    key_range,
    row_pointer,
    squared_distances,
    tf32_split,
)

# `python -m benchmarks.tiles` measures the tiles on a GPU.
DIFFERENCE_TILE = Tile(64, 64, 4, 1)
# By the larger of padded dimensions and value tile.
PRODUCT_TILES = {32: Tile(128, 64, 8), 64: Tile(128, 64, 8), 128: Tile(128, 64, 8, 1)}


def tile_for(tiles: dict[int, Tile], *widths: int) -> Tile:
    """Return the tile for the largest of some widths, which are powers of two."""
    return tiles[max(32, *widths)]


# --- By differences --------------------------------------------------------------------------------------------


def forward_by_differences(inputs: Inputs, results: Sequence[Tensor], *, only_flagged: bool) -> None:
    """Write output, log_mass and row_stats.

    Args:
        inputs: the problem.
        results: output (*batch, queries, value_dim), log_mass (*batch, queries) and row_stats (*batch, queries, 3), all
            float32.
        only_flagged: whether to compute only the rows that have a redo flag in row_stats.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    if not only_flagged:
        # Reading all rows is faster from transposed tokens, where a run of tokens is a run of memory.
        query, key, value = (transposed(x, 0.0).mT for x in (query, key, value))
    width = value_tile(inputs.value_dim)
    blocks, chunks = cdiv(inputs.queries, DIFFERENCE_TILE.queries), cdiv(inputs.value_dim, width)
    launch(
        difference_forward, blocks * chunks * inputs.batch_size,
        token_strides(query), token_strides(key), batch_strides(inputs.width), token_strides(value),
        batch_strides(inputs.bias_or_dummy(key)), *results, **inputs.common(), blocks=blocks, chunks=chunks,
        VALUE_DIM=inputs.value_dim, ONLY_FLAGGED=only_flagged, BV=width, tile=DIFFERENCE_TILE,
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def difference_forward(
    query, key, width, value, bias, output, log_mass, row_stats,
    inner, queries, keys, blocks, chunks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, ONLY_FLAGGED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write BV dimensions of the output of BM queries, their log_mass and their row_stats.

    row_stats: peak, inverse mass and redo flag of each query.
    """
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    selected = m < queries
    at = batch.to(tl.int64) * queries + m
    if ONLY_FLAGGED:
        selected = tl.load(row_stats + at * 3 + 2, mask=selected, other=0.0) > 0
        if tl.max(selected.to(tl.int32), 0) == 0:
            return
    query_tokens = batch_pointer(query, batch, inner) + m.to(tl.int64) * query[3]
    first_key, first_value = batch_pointer(key, batch, inner), batch_pointer(value, batch, inner)
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    scale = row_scale(width, m, queries, PROFILE, PER_QUERY, BM)
    v = chunk * BV + tl.arange(0, BV)
    peak = tl.full([BM], -INFINITY, tl.float32)
    total = tl.zeros([BM], tl.float32)
    weighted_sum = tl.zeros([BM, BV], tl.float32)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        key_tokens = first_key + n.to(tl.int64) * key[3]
        squared = squared_distances(query_tokens, key_tokens, m, n, query[4], key[4], queries, keys, DIM, BM, BN)
        scores = log_kernel(squared, scale[:, None], PROFILE)
        if HAS_BIAS:
            # A forbidden key has a bias of minus infinity, to which a NaN score must not be added.
            key_bias = tl.load(bias + n)[None, :]
            scores = tl.where(key_bias == -INFINITY, -INFINITY, scores + key_bias)
        scores = tl.where((n < keys)[None, :], scores, -INFINITY)
        if HAS_BAND:
            if cuts_band(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                scores = tl.where(in_band(n[None, :] - m[:, None], band), scores, -INFINITY)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row without any allowed key so far has peak -inf. Measured from 0, its mass stays 0 and nothing is NaN.
        base = tl.where(new_peak == -INFINITY, 0.0, new_peak)
        rescale = tl.exp2(peak - base)
        mass = tl.exp2(scores - base[:, None])
        total = total * rescale + tl.sum(mass, 1)
        place = first_value + v.to(tl.int64)[:, None] * value[4] + n.to(tl.int64)[None, :] * value[3]
        tile = tl.load(place, mask=(v < VALUE_DIM)[:, None] & (n < keys)[None, :], other=0.0).to(tl.float32)
        weighted_sum = weighted_sum * rescale[:, None] + dot_outside(mass, tile.T)
        peak = new_peak
    has_mass = total > 0
    peak = tl.where(has_mass, peak, 0.0)
    inverse = tl.where(has_mass, 1.0 / tl.where(has_mass, total, 1.0), 0.0)
    to = (output + at * VALUE_DIM)[:, None] + v[None, :]
    tl.store(to, 0.5 * weighted_sum * inverse[:, None], mask=selected[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + at, tl.log(total) + peak * LN2, mask=selected)
        tl.store(row_stats + at * 3, peak, mask=selected)
        tl.store(row_stats + at * 3 + 1, inverse, mask=selected)
        if not ONLY_FLAGGED:
            tl.store(row_stats + at * 3 + 2, tl.zeros([BM], tl.float32), mask=selected)


# --- By products -----------------------------------------------------------------------------------------------


def forward_by_products(inputs: Inputs, results: Sequence[Tensor]) -> None:
    """Write output, log_mass and row_stats; arguments as for `forward_by_differences`."""
    (key_parts, value_parts, key_squares, centre), key_blocks = forward_parts(inputs)
    dims, value_dims, width = padded_width(inputs.dim), padded_width(inputs.value_dim), value_tile(inputs.value_dim)
    tile = tile_for(PRODUCT_TILES, dims, width)
    blocks, chunks = cdiv(inputs.queries, tile.queries), cdiv(inputs.value_dim, width)
    operands = key_parts, key_squares, centre, inputs.width, value_parts, inputs.bias_or_dummy(key_squares)
    launch(
        product_forward, blocks * chunks * inputs.batch_size,
        token_strides(inputs.query), *(batch_strides(x) for x in operands), *results,
        **inputs.common(), padded_keys=padded_length(inputs.keys), key_blocks=key_blocks, blocks=blocks, chunks=chunks,
        PADDED_DIM=dims, VALUE_DIM=inputs.value_dim, PADDED_VALUE_DIM=value_dims, BV=width, tile=tile,
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def product_forward(
    query, key_parts, key_squares, centre, width, value_parts, bias, output, log_mass, row_stats,
    inner, queries, keys, padded_keys, key_blocks, blocks, chunks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    PROFILE: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write BV dimensions of the output of BM queries, their log_mass and their row_stats.

    key_parts, key_squares, centre, value_parts: the results of `split.split_keys_and_values`.
    row_stats: peak, inverse mass and redo flag of each query.
    """
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, PADDED_DIM)
    v = chunk * BV + tl.arange(0, BV)
    width, centre = batch_pointer(width, batch, inner), batch_pointer(centre, batch, inner)
    scale = row_scale(width, m, queries, PROFILE, PER_QUERY, BM)
    factor = exponent_scale(scale, PROFILE)
    place = batch_pointer(query, batch, inner) + m.to(tl.int64)[:, None] * query[3] + d[None, :] * query[4]
    is_token = (m < queries)[:, None] & (d < DIM)[None, :]
    q = tl.load(place, mask=is_token, other=0.0).to(tl.float32) - tl.load(centre + d)[None, :]
    q = tl.where(is_token, q, 0.0)
    query_square = tl.sum(q * q, 1)
    largest = tl.zeros([BLOCKS_PER_LOAD], tl.float32)
    for first in range(0, key_blocks, BLOCKS_PER_LOAD):
        b = first + tl.arange(0, BLOCKS_PER_LOAD)
        largest = tl.maximum(largest, tl.load(centre + PADDED_DIM + b, mask=b < key_blocks, other=0.0))
    is_far = ~(factor * (query_square + tl.max(largest, 0)) <= MAX_PRODUCT_TERM)
    q_high, q_low = tf32_split(q * (2.0 * factor)[:, None])
    query_square *= factor
    keys_high, values_high = batch_pointer(key_parts, batch, inner), batch_pointer(value_parts, batch, inner)
    keys_low = row_pointer(keys_high, PADDED_DIM, padded_keys)
    values_low = row_pointer(values_high, PADDED_VALUE_DIM, padded_keys)
    key_squares, bias = batch_pointer(key_squares, batch, inner), batch_pointer(bias, batch, inner)
    total = tl.zeros([BM], tl.float32)
    weighted_sum = tl.zeros([BM, BV], tl.float32)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    if tl.min((is_far | (m >= queries)).to(tl.int32), 0) == 1:
        end = begin  # all rows of this block are left to `difference_forward`
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        key_place = n[:, None] * PADDED_DIM + d[None, :]
        k_high = tl.load(keys_high + key_place)
        k_low = tl.load(keys_low + key_place)
        scores = dot_tf32x3(q_high, q_low, k_high, k_low)
        # Beyond the last key the squared norms are infinite, so the mass is 0 without a mask.
        scores = (scores - query_square[:, None]) - factor[:, None] * tl.load(key_squares + n)[None, :]
        if HAS_BIAS:
            scores += tl.load(bias + n)[None, :]
        mass = tl.exp2(scores)
        if HAS_BAND:
            if cuts_band(first - (block * BM + BM - 1), first + BN - 1 - block * BM, band):
                mass = tl.where(in_band(n[None, :] - m[:, None], band), mass, 0.0)
        total += tl.sum(mass, 1)
        mass_high, mass_low = tf32_split(mass)
        value_place = row_pointer(0, v, padded_keys)[:, None] + n[None, :]
        v_high = tl.load(values_high + value_place)
        v_low = tl.load(values_low + value_place)
        weighted_sum += dot_tf32x3(mass_high, mass_low, v_high, v_low)
    exists = m < queries
    redo = is_far | ~(total >= MIN_MASS) | (scale > MAX_SCALE) | (scale < 1 / MAX_SCALE)
    inverse = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    at = batch.to(tl.int64) * queries + m
    to = (output + at * VALUE_DIM)[:, None] + v[None, :]
    tl.store(to, weighted_sum * inverse[:, None], mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + at, tl.log(total), mask=exists)
        tl.store(row_stats + at * 3, tl.zeros([BM], tl.float32), mask=exists)
        tl.store(row_stats + at * 3 + 1, inverse, mask=exists)
        tl.store(row_stats + at * 3 + 2, redo.to(tl.float32), mask=exists)
