"""Softmax over the scores of a slab, pooling of the values (eq. 1 and 3), and the gradients of both.

The forward kernel is an online softmax (Milakov and Gimelshein, 2018). With weights P recomputed from log_mass, the
backward kernel computes dV = P' dO and dS = P * (dO V' - delta), where delta = rowsum(dO * O) - dlog_mass (Dao et al.,
2022). Lifted scores are multiplied by a power of two that depends on the weights (`weight_scale`). Their gradients are
stored in half precision, multiplied by another power of two (`grad_scale`).
"""
# ruff: noqa: N803, SIM102 - Triton's conventions: capital names for constants, no `and` with a constant

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.additive import FoldedProblem, PerForm, Slab
from regard.backends.triton.launch import (
    MIN_PROGRAMS,
    NO_BAND,
    Tile,
    batch_operand,
    cdiv,
    launch,
    padded_size,
    pair_operand,
    token_operand,
)
from regard.backends.triton.primitives import (
    INFINITY,
    LN2,
    LOG2E,
    UNSPECIALIZED,
    batch_pointer,
    cuts_band,
    in_band,
    key_range,
    twice_dot,
)

# The sizes of tiles were found by timing each kernel alone on one H200.
# The products with weights have more digits for exact scores (tf32x3 instead of tf32).
POOL_TILES = PerForm(exact=Tile(16, 64, 4, 3), lifted=Tile(32, 64, 4, 3))
GRADIENT_TILES = PerForm(exact=Tile(64, 32, 4, 1), lifted=Tile(64, 64, 4, 1))
# Largest number of dimensions of the values that a program pools.
MAX_VALUE_BLOCK = 128
# Rows of which a program computes delta.
DELTA_ROWS = 64
# Elements that the one program of `choose_scale` reads at once.
SCALE_ELEMENTS = 4096


# --- Scores with scale, bias, mask and dropout -----------------------------------------------------------------


def pair_arguments(folded: FoldedProblem, query_bias: Tensor | None, key_bias: Tensor | None) -> dict[str, Any]:
    """Return the arguments that `pool_scores`, `score_gradients` and `short.attend_short` share."""
    has_band = folded.band != NO_BAND
    return {
        "value": token_operand(folded.value),
        "weight": batch_operand(folded.weight),
        "key_bias": None if key_bias is None else batch_operand(key_bias),
        "query_bias": None if query_bias is None else batch_operand(query_bias),
        "bias": None if folded.bias is None else pair_operand(folded.bias),
        "allowed": None if folded.allowed is None else pair_operand(folded.allowed),
        "seed": None if folded.seed is None else (folded.seed, folded.batch_size // folded.seed.numel()),
        "inner": folded.inner,
        "queries": folded.queries,
        "keys": folded.keys,
        "dropout": folded.dropout,
        "band": folded.band if has_band else None,
        "LIFTED": folded.rank > 0,
        "HAS_KEY_BIAS": key_bias is not None,
        "HAS_BIAS": folded.bias is not None,
        "HAS_MASK": folded.allowed is not None,
        "HAS_BAND": has_band,
        "HAS_DROPOUT": folded.dropout > 0,
        "UNITS": folded.units,
        "PADDED": padded_size(folded.units),
        "VALUE_DIM": folded.value.shape[-1],
        "BV": _value_block(folded),
    }


def _value_block(folded: FoldedProblem) -> int:
    """Return how many dimensions of the values a program pools."""
    return min(padded_size(folded.value.shape[-1]), MAX_VALUE_BLOCK)


@triton.jit
def weight_scale(weight, UNITS: tl.constexpr, PADDED: tl.constexpr):
    """Return the power of two that brings the largest |w| into [1/2, 1), or 1 if that power is not a normal float32.

    Near 1, few of the products of weights and features are subnormal in float16.

    weight: a pointer to UNITS weights; PADDED: the padded number of units.
    """
    h = tl.arange(0, PADDED)
    largest = tl.max(tl.abs(tl.load(weight + h, mask=h < UNITS, other=0.0)), 0)
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # The bits of 2^-k; exponents count from 127.
    power = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where((exponent > 0) & (exponent < 253), power, 1.0)


@triton.jit
def mask_and_bias(
    scores, m, n, batch, inner, m0, n0, keys, unscale, key_bias, bias, allowed, band,
    HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return scores (BM, BN) of the queries m and keys n to base 2, minus infinity where a pair is forbidden.

    scores: those of the slab, to be multiplied by `unscale`.
    m0, n0: the first query and key.
    key_bias: (batch, columns); it may be minus infinity.
    bias, allowed: operands with the strides of queries and keys, 0 where they are shared.
    """
    scores *= unscale
    in_bounds = n < keys
    if HAS_KEY_BIAS:
        # Do not add minus infinity: a masked key may hold anything, and its score may be NaN.
        added = tl.load(batch_pointer(key_bias, batch, inner) + n, mask=in_bounds, other=0.0)[None, :]
        scores = tl.where(added == -INFINITY, -INFINITY, scores + added)
    if HAS_BIAS:
        pointers = batch_pointer(bias, batch, inner) + m.to(tl.int64)[:, None] * bias[3]
        pointers += n.to(tl.int64)[None, :] * bias[4]
        scores += tl.load(pointers, mask=in_bounds[None, :], other=0.0).to(tl.float32)
    scores = tl.where(in_bounds[None, :], scores * LOG2E, -INFINITY)
    if HAS_MASK:
        pointers = batch_pointer(allowed, batch, inner) + m.to(tl.int64)[:, None] * allowed[3]
        pointers += n.to(tl.int64)[None, :] * allowed[4]
        scores = tl.where(tl.load(pointers, mask=in_bounds[None, :], other=0) != 0, scores, -INFINITY)
    if HAS_BAND:
        if cuts_band(n0 - (m0 + BM - 1), n0 + BN - 1 - m0, band):
            scores = tl.where(in_band(n[None, :] - m[:, None], band), scores, -INFINITY)
    return scores


@triton.jit
def dropout_mask(seed, dropout, m, n, batch, queries, keys):
    """Return 0 for dropped weights and 1 / (1 - dropout) for the others; it is the same in every kernel.

    seed: a pointer to seeds, and how many batch elements share each of them.
    """
    element = batch % seed[1]
    pair = (element.to(tl.int64) * queries + m.to(tl.int64))[:, None] * keys + n.to(tl.int64)[None, :]
    return tl.where(tl.rand(tl.load(seed[0] + batch // seed[1]), pair) >= dropout, 1.0 / (1.0 - dropout), 0.0)


# --- Forward ---------------------------------------------------------------------------------------------------


def pool(
    folded: FoldedProblem,
    slab: Slab,
    scores: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    output: Tensor,
    log_mass: Tensor,
) -> None:
    """Write output and log_mass of the queries of a slab.

    Args:
        folded: the problem.
        slab: the slab.
        scores: (num_batch, rows, columns).
        query_bias: added to the scores of each query, (outer or 1, inner or 1, padded queries).
        key_bias: added to the scores of each key, (outer or 1, inner or 1, padded keys).
        output: (batch, queries, value_dim), contiguous.
        log_mass: (batch, queries), contiguous.
    """
    tile = POOL_TILES.of(folded.rank)
    blocks, chunks = cdiv(slab.rows, tile.queries), cdiv(folded.value.shape[-1], _value_block(folded))
    launch(
        pool_scores, slab.num_batch * blocks * chunks,
        scores, output=output, log_mass=log_mass, first_batch=slab.first_batch, first_row=slab.first_row,
        rows=slab.rows, columns=scores.shape[-1], blocks=blocks, chunks=chunks, tile=tile,
        **pair_arguments(folded, query_bias, key_bias),
    )  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALIZED)
def pool_scores(
    slab_scores, value, weight, key_bias, query_bias, bias, allowed, seed, output, log_mass,
    first_batch, first_row, inner, queries, keys, rows, columns, blocks, chunks, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Pool BV of the values for BM queries of a slab.

    slab_scores: (num_batch, rows, columns).
    output: (batch, queries, VALUE_DIM).
    log_mass: (batch, queries).
    LIFTED: the scores of the slab are scaled by `weight_scale`, and query_bias (batch, columns) is the part that
        depends on the query alone; only log_mass depends on it.
    """
    chunk = tl.program_id(0) % chunks
    element, block = tl.program_id(0) // chunks // blocks, tl.program_id(0) // chunks % blocks
    # Offsets inside an element of the slab fit into 32 bits.
    slab_scores += element.to(tl.int64) * rows * columns + block * BM * columns
    pool_block(
        slab_scores, value, weight, key_bias, query_bias, bias, allowed, seed, output, log_mass, first_batch + element,
        first_row + block * BM, chunk, inner, queries, keys, columns, dropout, band,
        LIFTED, HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, HAS_DROPOUT, UNITS, PADDED, VALUE_DIM, BV, BM, BN,
    )  # fmt: skip


@triton.jit
def pool_block(
    scores_of_block, value, weight, key_bias, query_bias, bias, allowed, seed, output, log_mass,
    batch, m0, chunk, inner, queries, keys, columns, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Pool the values of one chunk, BV dimensions, for the BM queries from m0 of one batch element.

    scores_of_block: a pointer to their scores (BM, columns). The other arguments are those of `pool_scores`.
    """
    m = m0 + tl.arange(0, BM)
    # Offsets inside a block of scores and inside a tile of values fit into 32 bits.
    score_offsets = tl.arange(0, BM)[:, None] * columns + tl.arange(0, BN)[None, :]
    v = chunk * BV + tl.arange(0, BV)
    values = batch_pointer(value, batch, inner)
    value_offsets = tl.arange(0, BN)[:, None] * value[3] + v[None, :] * value[4]
    unscale = 1.0
    if LIFTED:
        unscale = 1.0 / weight_scale(batch_pointer(weight, batch, inner), UNITS, PADDED)
    exists = m < queries
    clamped_m = tl.minimum(m, queries - 1)
    peak = tl.full([BM], -INFINITY, tl.float32)
    total = tl.zeros([BM], tl.float32)
    pooled = tl.zeros([BM, BV], tl.float32)
    begin, end = key_range(m0, m0 + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        scores = mask_and_bias(
            tl.load(scores_of_block + first + score_offsets), clamped_m, n, batch, inner, m0, first, keys, unscale,
            key_bias, bias, allowed, band, HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, BM, BN,
        )  # fmt: skip
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row without any allowed key so far has peak -inf. Measured from 0, its mass stays 0 and nothing is NaN.
        base = tl.where(new_peak == -INFINITY, 0.0, new_peak)
        rescale = tl.exp2(peak - base)
        mass = tl.exp2(scores - base[:, None])
        total = total * rescale + tl.sum(mass, 1)
        if HAS_DROPOUT:
            mass *= dropout_mask(seed, dropout, m, n, batch, queries, keys)
        tile_values = values + tl.cast(first, tl.int64) * value[3]
        in_bounds = (n < keys)[:, None] & (v < VALUE_DIM)[None, :]
        tile = tl.load(tile_values + value_offsets, mask=in_bounds, other=0.0).to(tl.float32)
        if LIFTED:
            pooled = pooled * rescale[:, None] + tl.dot(mass, tile, input_precision="tf32")
        else:
            pooled = pooled * rescale[:, None] + twice_dot(mass, tile)
        peak = new_peak
    has_keys = total > 0
    factor = 1.0 if LIFTED else 0.5  # halve: see `twice_dot`
    inverse = tl.where(has_keys, factor / tl.where(has_keys, total, 1.0), 0.0)
    row = batch.to(tl.int64) * queries + m
    pointers = output + row[:, None] * VALUE_DIM + v[None, :]
    in_bounds = exists[:, None] & (v < VALUE_DIM)[None]
    tl.store(pointers, (pooled * inverse[:, None]).to(output.dtype.element_ty), mask=in_bounds)
    if chunk == 0:
        log_total = tl.log(tl.where(has_keys, total, 1.0)) + tl.where(has_keys, peak, 0.0) * LN2
        log_total = tl.where(has_keys, log_total, -INFINITY)
        log_total = tl.where(total != total, total, log_total)
        if LIFTED:
            log_total += tl.load(batch_pointer(query_bias, batch, inner) + m, mask=exists, other=0.0)
        tl.store(log_mass + row, log_total, mask=exists)


# --- Backward --------------------------------------------------------------------------------------------------


class QueryTerms(NamedTuple):
    """What the backward pass knows of each query before it reads scores.

    Attributes:
        d_output: (batch, queries, value_dim).
        delta: rowsum(d_output * output) - d_log_mass, (batch, queries).
        log_mass: (batch, queries).
        d_log_mass: 0 where a query has no keys, (batch, queries).
        grad_scale: the factor of d_scores in half precision, (1,); 1 for exact scores.
    """

    d_output: Tensor
    delta: Tensor
    log_mass: Tensor
    d_log_mass: Tensor
    grad_scale: Tensor


def query_terms(
    folded: FoldedProblem, output: Tensor, log_mass: Tensor, d_output: Tensor, d_log_mass: Tensor
) -> QueryTerms:
    """Return what the backward pass knows of each query before it reads scores.

    Kernels compute it, because plain operations would be a dozen small launches, which bound a short call.

    Args:
        folded: the problem.
        output: (*batch, queries, value_dim).
        log_mass: (*batch, queries).
        d_output: (*batch, queries, value_dim).
        d_log_mass: (*batch, queries).
    """
    output, log_mass, d_output, d_log_mass = (x.contiguous() for x in (output, log_mass, d_output, d_log_mass))
    value, rows = folded.value, folded.batch_size * folded.queries
    log_mass = log_mass.reshape(folded.batch_size, folded.queries)
    delta, norms, d_mass = (torch.empty_like(log_mass) for _ in range(3))
    launch(
        row_deltas, cdiv(rows, DELTA_ROWS),
        d_output, output, log_mass, d_log_mass, delta, norms, d_mass, rows=rows, VALUE_DIM=value.shape[-1],
        BV=_value_block(folded), BR=DELTA_ROWS,
    )  # fmt: skip
    grad_scale = folded.weight.new_ones(1)
    if folded.rank:
        value_norms = torch.linalg.vector_norm(value, dim=-1, dtype=torch.float32)
        launch(
            choose_scale, 1, norms, value_norms, d_mass, grad_scale, rows=rows, tokens=value_norms.numel(),
            kept=1 - folded.dropout, BLOCK=SCALE_ELEMENTS,
        )  # fmt: skip
    d_output = d_output.reshape(folded.batch_size, folded.queries, -1)
    return QueryTerms(d_output, delta, log_mass, d_mass, grad_scale)


@triton.jit
def row_deltas(
    d_output, output, log_mass, d_log_mass, delta, norms, d_mass, rows,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write delta, the norms |dO|, and d_mass, which is dlog_mass or 0 where a row has no keys, of BR rows.

    d_output, output: (rows, VALUE_DIM); all others: (rows,). The rows are those of all batch elements.
    """
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    row_offsets = r.to(tl.int64)[:, None] * VALUE_DIM
    product, square = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32)
    for first in range(0, VALUE_DIM, BV):
        v = first + tl.arange(0, BV)
        in_bounds = (r < rows)[:, None] & (v < VALUE_DIM)[None, :]
        grad = tl.load(d_output + row_offsets + v[None, :], mask=in_bounds, other=0.0).to(tl.float32)
        pooled = tl.load(output + row_offsets + v[None, :], mask=in_bounds, other=0.0).to(tl.float32)
        product += tl.sum(grad * pooled, 1)
        square += tl.sum(grad * grad, 1)
    # The log_mass of a row without keys is minus infinity for any tokens, so it has no gradient.
    has_keys = tl.load(log_mass + r, mask=r < rows, other=0.0) != -INFINITY
    mass_gradient = tl.where(has_keys, tl.load(d_log_mass + r, mask=r < rows, other=0.0).to(tl.float32), 0.0)
    tl.store(delta + r, product - mass_gradient, mask=r < rows)
    tl.store(norms + r, tl.sqrt(square), mask=r < rows)
    tl.store(d_mass + r, mass_gradient, mask=r < rows)


@triton.jit
def largest_abs(numbers, count, BLOCK: tl.constexpr):
    """Return the largest |number|."""
    largest = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        index = first + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.abs(tl.load(numbers + index, mask=index < count, other=0.0)))
    return tl.max(largest, 0)


@triton.jit
def choose_scale(norms, value_norms, d_mass, grad_scale, rows, tokens, kept, BLOCK: tl.constexpr):
    """Write the power of two that brings the bound of |d_scores| into [2^14, 2^15).

    So few of them are subnormal in float16. The bound is 2 max|dO| max|v| / (1 - dropout) + max|dlog_mass|, or 2^-66
    if it is smaller.

    kept: 1 - dropout.
    """
    bound = 2.0 * largest_abs(norms, rows, BLOCK) * largest_abs(value_norms, tokens, BLOCK) / kept
    bound = tl.maximum(bound + largest_abs(d_mass, rows, BLOCK), 1.3552527156068805e-20)  # 2^-66
    exponent = (bound.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # The bits of 2^(14 - e), where the bound is at least 2^e; exponents count from 127.
    tl.store(grad_scale, ((268 - exponent) << 23).to(tl.float32, bitcast=True))


def gradients(
    folded: FoldedProblem,
    slab: Slab,
    scores: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    terms: QueryTerms,
    d_value: Tensor,
    *,
    can_overwrite: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a slab's scores, and write or add those of its values.

    Args:
        folded: the problem.
        slab: the slab.
        scores: (num_batch, rows, columns).
        query_bias: added to the scores of each query, (outer or 1, inner or 1, padded queries).
        key_bias: added to the scores of each key, (outer or 1, inner or 1, padded keys).
        terms: what is known of the queries.
        d_value: (batch, keys, value_dim); the first slab of its batch elements writes it, the others add to it.
        can_overwrite: whether exact scores may be overwritten by their gradients.

    Returns:
        d_scores (num_batch, rows, columns), times grad_scale in half precision if lifted, and their sums over rows
        (num_batch, columns).
    """
    is_lifted, columns = folded.rank > 0, scores.shape[-1]
    tile = GRADIENT_TILES.of(folded.rank)
    key_blocks, chunks = columns // tile.keys, cdiv(folded.value.shape[-1], _value_block(folded))
    # Several chunks of values read the same scores, so d_scores can replace the scores only if there is one chunk.
    in_place = chunks == 1 and can_overwrite and not is_lifted
    d_scores = scores if in_place else torch.empty_like(scores, dtype=torch.float16 if is_lifted else None)
    # Rows are split among programs if there would be too few programs; each part has its own sum of d_value.
    parts = max(min(MIN_PROGRAMS // (slab.num_batch * key_blocks * chunks), slab.rows // tile.queries), 1)
    part_rows = cdiv(slab.rows, parts * tile.queries) * tile.queries
    slab_d_value = d_value[slab.first_batch : slab.first_batch + slab.num_batch]
    is_complete = parts == 1 and slab.first_row == 0
    part_d_value = slab_d_value if is_complete else scores.new_empty(parts, *slab_d_value.shape)
    sums = scores.new_empty(parts, slab.num_batch, columns)
    launch(
        score_gradients, slab.num_batch * key_blocks * parts * chunks,
        scores, d_scores, d_output=terms.d_output, delta=terms.delta, log_mass=terms.log_mass,
        grad_scale=terms.grad_scale, d_value=part_d_value, sums=sums,
        first_batch=slab.first_batch, first_row=slab.first_row, rows=slab.rows,
        columns=columns, key_blocks=key_blocks, parts=parts, part_rows=part_rows, chunks=chunks,
        num_batch=slab.num_batch, tile=tile, **pair_arguments(folded, query_bias, key_bias),
    )  # fmt: skip
    if slab.first_row > 0:
        slab_d_value.add_(part_d_value.sum(0))
    elif not is_complete:
        torch.sum(part_d_value, 0, out=slab_d_value)
    return d_scores, sums[0] if parts == 1 else sums.sum(0)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def score_gradients(
    slab_scores, d_scores, value, weight, key_bias, query_bias, bias, allowed, seed, d_output, delta, log_mass,
    grad_scale, d_value, sums,
    first_batch, first_row, inner, queries, keys, rows, columns, key_blocks, parts, part_rows, chunks,
    num_batch, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute the d_scores of BN keys for one part of the slab's rows, and what these rows add to BV of the d_value.

    slab_scores: (num_batch, rows, columns), as for `pool_scores`.
    d_scores: (num_batch, rows, columns), if LIFTED in half precision times grad_scale; 0 for pairs that are forbidden
        or do not exist.
    d_value: (parts, num_batch, keys, VALUE_DIM).
    sums: (parts, num_batch, columns), the d_scores summed over the rows of a part.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    part, program = program % parts, program // parts
    element, block = program // key_blocks, program % key_blocks
    batch = first_batch + element
    n0 = block * BN
    n = n0 + tl.arange(0, BN)
    v = chunk * BV + tl.arange(0, BV)
    # Offsets inside an element of the slab, a tile of values and a block of rows fit into 32 bits.
    slab_scores += element.to(tl.int64) * rows * columns + n0
    d_scores += element.to(tl.int64) * rows * columns + n0
    values = batch_pointer(value, batch, inner) + n0.to(tl.int64) * value[3]
    tile_rows = tl.arange(0, BM)
    unscale, scale = 1.0, 1.0
    if LIFTED:
        unscale = 1.0 / weight_scale(batch_pointer(weight, batch, inner), UNITS, PADDED)
        scale = tl.load(grad_scale)
    pooled = tl.zeros([BN, BV], tl.float32)
    summed = tl.zeros([BN], tl.float32)
    for row in range(part * part_rows, tl.minimum(part * part_rows + part_rows, rows), BM):
        m0 = first_row + row
        m = m0 + tl.arange(0, BM)
        exists = m < queries
        clamped_m = tl.minimum(m, queries - 1)
        score_offsets = (row + tile_rows)[:, None] * columns + tl.arange(0, BN)[None, :]
        scores = mask_and_bias(
            tl.load(slab_scores + score_offsets), clamped_m, n, batch, inner, m0, n0, keys, unscale, key_bias, bias,
            allowed, band, HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, BM, BN,
        )  # fmt: skip
        first_query = batch.to(tl.int64) * queries + m0
        base = tl.load(log_mass + first_query + tile_rows, mask=exists, other=0.0)
        if LIFTED:
            base -= tl.load(batch_pointer(query_bias, batch, inner) + m, mask=exists, other=0.0)
        base = tl.where(base == -INFINITY, 0.0, base) * LOG2E
        weights = tl.where(exists[:, None], tl.exp2(scores - base[:, None]), 0.0)
        d_score = tl.zeros([BM, BN], tl.float32)
        for first in range(0, VALUE_DIM, BV):
            w = first + tl.arange(0, BV)
            in_bounds = (w < VALUE_DIM)[None, :]
            pointers = d_output + first_query * VALUE_DIM + tile_rows[:, None] * VALUE_DIM + w[None, :]
            grad = tl.load(pointers, mask=exists[:, None] & in_bounds, other=0.0)
            pointers = values + tl.arange(0, BN)[:, None] * value[3] + w[None, :] * value[4]
            tile = tl.load(pointers, mask=(n < keys)[:, None] & in_bounds, other=0.0).to(tl.float32)
            if LIFTED:
                d_score = tl.dot(grad.to(tl.float32), tile.T, d_score, input_precision="tf32")
            else:
                d_score += tl.dot(grad.to(tl.float32), tile.T, input_precision="tf32x3")
        kept = weights
        if HAS_DROPOUT:
            keep = dropout_mask(seed, dropout, m, n, batch, queries, keys)
            d_score *= keep
            kept = weights * keep
        d_score = (d_score - tl.load(delta + first_query + tile_rows, mask=exists, other=0.0)[:, None]) * weights
        pointers = d_output + first_query * VALUE_DIM + tile_rows[:, None] * VALUE_DIM + v[None, :]
        grad = tl.load(pointers, mask=exists[:, None] & (v < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
        if LIFTED:
            pooled = tl.dot(kept.T, grad, pooled, input_precision="tf32")
        else:
            pooled += twice_dot(kept.T, grad)
        if chunk == 0:
            summed += tl.sum(d_score, 0)
            tl.store(d_scores + score_offsets, (d_score * scale).to(d_scores.dtype.element_ty))
    key_rows = (part.to(tl.int64) * num_batch + element) * keys + n
    pointers = d_value + key_rows[:, None] * VALUE_DIM + v[None, :]
    factor = 1.0 if LIFTED else 0.5  # halve: see `twice_dot`
    tl.store(pointers, pooled * factor, mask=(n < keys)[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(sums + (part.to(tl.int64) * num_batch + element) * columns + n, summed * scale)
