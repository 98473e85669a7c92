"""The forward kernels of distances for many dimensions or values: tiles of pairs, summed by matrix products.

`difference_forward` is exact for every problem. It sums squared differences dimension by dimension, and it computes the
softmax in the log domain with a running maximum, so a query a million widths away gets the value of its nearest key. It
runs the problems that no faster kernel supports, and the rows that a faster kernel flagged.

`product_forward` computes |q - k|^2 = |q|^2 + |k|^2 - 2 q'k, with q and k relative to the approximate centre of the
keys, by TF32 products (`primitives`). The error is 2^-22 of |q|^2 + |k|^2. It flags a row if this error is too large
for its scores, if its mass is tiny or NaN, or if the square of its width is not a normal number.
"""
# ruff: noqa: N803, SIM102 - Triton: capital names for constants, no `and` with a constant

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.triton.distance.inputs import Inputs, KernelResults, empty_results, prepare
from regard.backends.triton.distance.profiles import MAX_SCALE, MIN_MASS, log_kernel, row_parameter, squared_factor
from regard.backends.triton.distance.split import MAX_SQUARED_NORMS, forward_parts, largest_squares, value_block
from regard.backends.triton.launch import (
    KnownCall,
    Launch,
    Layout,
    Tile,
    batch_operand,
    cdiv,
    empty_float32,
    launch,
    launch_or_repeat,
    layout_of,
    padded_length,
    padded_size,
    token_operand,
    transposed,
)
from regard.backends.triton.primitives import (
    INFINITY,
    LN2,
    UNSPECIALIZED,
    batch_pointer,
    cuts_band,
    dot_tf32x3,
    in_band,
    key_range,
    row_offset,
    row_pointer,
    squared_distances,
    store_transposed,
    tf32_split,
    twice_dot,
)
from regard.scores.distance import DistancePair

# `python -m benchmarks.tiles` measures the tiles on a GPU.
DIFFERENCE_TILE = Tile(64, 64, 4, 1)
# By the larger of the padded dimensions and the block of values.
PRODUCT_TILES = {32: Tile(128, 64, 8), 64: Tile(128, 64, 8), 128: Tile(128, 64, 8, 1)}


def tile_for(tiles: dict[int, Tile], *sizes: int) -> Tile:
    """Return the tile for the largest of some sizes, which are powers of two."""
    return tiles[max(32, *sizes)]


# --- By differences --------------------------------------------------------------------------------------------


def forward_by_differences(inputs: Inputs, results: KernelResults, *, only_flagged: bool) -> None:
    """Write the results of a problem, by `difference_forward`.

    Args:
        inputs: the problem.
        results: the memory to write to.
        only_flagged: whether to compute only the rows that have a redo flag in row_stats.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    if not only_flagged:
        # Reading all rows is faster from transposed tokens, where a run of tokens is a run of memory.
        query, key, value = (transposed(x, 0.0).mT for x in (query, key, value))
    settings = _difference_settings(inputs, results) | {"ONLY_FLAGGED": only_flagged, "TRANSPOSE": False}
    # Without TRANSPOSE the kernel does not use its memory, so any tensor will do.
    operands = _difference_operands(inputs, query, key, value, memory=results.log_mass)
    programs = settings["blocks"] * settings["chunks"] * inputs.batch_size
    launch(difference_forward, programs, *operands, tile=DIFFERENCE_TILE, **settings)


_known_calls: dict[Layout, KnownCall] = {}


def short_forward(problem: Problem) -> tuple[KernelResults, Tensor | None]:
    """Return the results of a problem and `Inputs.bias_maximum`, by one launch of `difference_forward`."""
    pair, inputs = problem.pair, problem.all_tensors()
    assert isinstance(pair, DistancePair)
    if problem.mask is None and problem.bias is None:
        layout = pair.kernel.name, *layout_of(inputs)
        found = launch_or_repeat(_known_calls, layout, inputs, lambda: _short_launch(prepare(problem)))
        return KernelResults(*found[:3]), None
    prepared = prepare(problem)
    one_launch = _short_launch(prepared)
    one_launch.start()
    return KernelResults(*one_launch.results[:3]), prepared.bias_maximum


def _short_launch(inputs: Inputs) -> Launch:
    results, tile = empty_results(inputs), DIFFERENCE_TILE
    settings = _difference_settings(inputs, results) | {"ONLY_FLAGGED": False, "TRANSPOSE": True}
    programs = settings["blocks"] * settings["chunks"] * inputs.batch_size
    memory = empty_float32(inputs.query, programs, inputs.dim, tile.queries + settings["padded_keys"])
    operands = _difference_operands(inputs, inputs.query, inputs.key, inputs.value, memory=memory)
    return Launch(difference_forward, programs, [*results, memory], operands, tile, settings)


def _difference_operands(inputs: Inputs, query: Tensor, key: Tensor, value: Tensor, memory: Tensor) -> Sequence[Any]:
    return (
        token_operand(query), token_operand(key), batch_operand(inputs.width), token_operand(value),
        batch_operand(inputs.bias_or_dummy(key)), memory,
    )  # fmt: skip


def _difference_settings(inputs: Inputs, results: KernelResults) -> dict[str, Any]:
    block = value_block(inputs.value_dim)
    blocks, chunks = cdiv(inputs.queries, DIFFERENCE_TILE.queries), cdiv(inputs.value_dim, block)
    sizes = {"blocks": blocks, "chunks": chunks, "padded_keys": padded_length(inputs.keys)}
    constants = {"VALUE_DIM": inputs.value_dim, "BD": min(padded_size(inputs.dim), 32), "BV": block}
    return results._asdict() | inputs.pair_arguments() | sizes | constants


@triton.jit(do_not_specialize=UNSPECIALIZED)
def difference_forward(
    query, key, width, value, bias, memory, output, log_mass, row_stats,
    inner, queries, keys, padded_keys, blocks, chunks, band,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr, ONLY_FLAGGED: tl.constexpr, TRANSPOSE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write BV dimensions of the output of BM queries, their log_mass and their row_stats.

    row_stats: see `inputs.ROW_STATS`.
    TRANSPOSE: each program first writes its queries and all keys transposed to `memory`, (programs, DIM, BM +
        padded_keys). That saves launches where a few programs need the same keys.
    """
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    selected = m < queries
    row = batch.to(tl.int64) * queries + m
    if ONLY_FLAGGED:
        selected = tl.load(row_stats + row * 3 + 2, mask=selected, other=0.0) > 0
        if tl.max(selected.to(tl.int32), 0) == 0:
            return
    query_tokens = batch_pointer(query, batch, inner) + m.to(tl.int64) * query[3]
    first_key, first_value = batch_pointer(key, batch, inner), batch_pointer(value, batch, inner)
    query_step, key_step, key_stride = query[4], key[4], key[3]
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    if TRANSPOSE:
        own_memory = row_pointer(memory, tl.program_id(0), DIM * (BM + padded_keys))
        queries_of_batch = batch_pointer(query, batch, inner), query[3], query[4]
        query_tokens, query_step = own_memory + tl.arange(0, BM), BM
        store_transposed(queries_of_batch, m, queries, query_tokens, BM, DIM, BD)
        keys_of_batch = first_key, key[3], key[4]
        first_key, key_step, key_stride = (
            memory + tl.program_id(0).to(tl.int64) * DIM * (BM + padded_keys),
            padded_keys,
            1,
        )
        first_key += DIM * BM
        for first in range(begin, end, BN):
            n = first + tl.arange(0, BN)
            store_transposed(keys_of_batch, n, keys, first_key + n, padded_keys, DIM, BD)
        tl.debug_barrier()
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    v = chunk * BV + tl.arange(0, BV)
    peak = tl.full([BM], -INFINITY, tl.float32)
    total = tl.zeros([BM], tl.float32)
    weighted_sum = tl.zeros([BM, BV], tl.float32)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        key_tokens = first_key + n.to(tl.int64) * key_stride
        squared = squared_distances(query_tokens, key_tokens, m, n, query_step, key_step, queries, keys, DIM, BM, BN)
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
        pointers = first_value + v.to(tl.int64)[:, None] * value[4] + n.to(tl.int64)[None, :] * value[3]
        tile = tl.load(pointers, mask=(v < VALUE_DIM)[:, None] & (n < keys)[None, :], other=0.0).to(tl.float32)
        weighted_sum = weighted_sum * rescale[:, None] + twice_dot(mass, tile.T)
        peak = new_peak
    has_mass = total > 0
    peak = tl.where(has_mass, peak, 0.0)
    inverse = tl.where(has_mass, 1.0 / tl.where(has_mass, total, 1.0), 0.0)
    pointers = (output + row * VALUE_DIM)[:, None] + v[None, :]
    # Halve the sums: see `twice_dot`.
    tl.store(pointers, 0.5 * weighted_sum * inverse[:, None], mask=selected[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + row, tl.log(total) + peak * LN2, mask=selected)
        tl.store(row_stats + row * 3, peak, mask=selected)
        tl.store(row_stats + row * 3 + 1, inverse, mask=selected)
        if not ONLY_FLAGGED:
            tl.store(row_stats + row * 3 + 2, tl.zeros([BM], tl.float32), mask=selected)


# --- By products -----------------------------------------------------------------------------------------------


def forward_by_products(inputs: Inputs, results: KernelResults) -> None:
    """Write the results of a problem, by `product_forward`."""
    parts = forward_parts(inputs)
    dims, value_dims, block = padded_size(inputs.dim), padded_size(inputs.value_dim), value_block(inputs.value_dim)
    tile = tile_for(PRODUCT_TILES, dims, block)
    blocks, chunks = cdiv(inputs.queries, tile.queries), cdiv(inputs.value_dim, block)
    operands = (
        parts.key_parts, parts.key_squares, parts.centre_and_norms, inputs.width, parts.value_parts,
        inputs.bias_or_dummy(parts.key_squares),
    )  # fmt: skip
    launch(
        product_forward, blocks * chunks * inputs.batch_size,
        token_operand(inputs.query), *(batch_operand(x) for x in operands), *results,
        **inputs.pair_arguments(), padded_keys=padded_length(inputs.keys), key_blocks=parts.key_blocks, blocks=blocks,
        chunks=chunks, PADDED_DIM=dims, VALUE_DIM=inputs.value_dim, PADDED_VALUE_DIM=value_dims, BV=block, tile=tile,
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def product_forward(
    query, key_parts, key_squares, centre_and_norms, width, value_parts, bias, output, log_mass, row_stats,
    inner, queries, keys, padded_keys, key_blocks, blocks, chunks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    PROFILE: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write BV dimensions of the output of BM queries, their log_mass and their row_stats.

    key_parts, key_squares, centre_and_norms, value_parts: those of `split.ForwardParts`.
    row_stats: see `inputs.ROW_STATS`.
    """
    chunk = tl.program_id(0) % chunks
    batch, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, PADDED_DIM)
    v = chunk * BV + tl.arange(0, BV)
    width, centre_and_norms = batch_pointer(width, batch, inner), batch_pointer(centre_and_norms, batch, inner)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    factor = squared_factor(scale, PROFILE)
    pointers = batch_pointer(query, batch, inner) + m.to(tl.int64)[:, None] * query[3] + d[None, :] * query[4]
    in_bounds = (m < queries)[:, None] & (d < DIM)[None, :]
    q = tl.load(pointers, mask=in_bounds, other=0.0).to(tl.float32) - tl.load(centre_and_norms + d)[None, :]
    q = tl.where(in_bounds, q, 0.0)
    query_square = tl.sum(q * q, 1)
    largest = largest_squares(centre_and_norms, key_blocks, PADDED_DIM)
    is_far = ~(factor * (query_square + tl.max(largest, 0)) <= MAX_SQUARED_NORMS)
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
        key_offsets = n[:, None] * PADDED_DIM + d[None, :]
        k_high = tl.load(keys_high + key_offsets)
        k_low = tl.load(keys_low + key_offsets)
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
        value_offsets = row_offset(v, padded_keys)[:, None] + n[None, :]
        v_high = tl.load(values_high + value_offsets)
        v_low = tl.load(values_low + value_offsets)
        weighted_sum += dot_tf32x3(mass_high, mass_low, v_high, v_low)
    exists = m < queries
    redo = is_far | ~(total >= MIN_MASS) | (scale > MAX_SCALE) | (scale < 1 / MAX_SCALE)
    inverse = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    row = batch.to(tl.int64) * queries + m
    pointers = (output + row * VALUE_DIM)[:, None] + v[None, :]
    tl.store(pointers, weighted_sum * inverse[:, None], mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(log_mass + row, tl.log(total), mask=exists)
        tl.store(row_stats + row * 3, tl.zeros([BM], tl.float32), mask=exists)
        tl.store(row_stats + row * 3 + 1, inverse, mask=exists)
        tl.store(row_stats + row * 3 + 2, redo.to(tl.float32), mask=exists)
