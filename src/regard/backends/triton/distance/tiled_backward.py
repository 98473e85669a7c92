"""The backward kernels of distances for many dimensions or values: tiles of pairs, summed by matrix products.

The gradients follow the same equations as in `narrow`, with one kernel for queries and one for keys. Matrix products
use two TF32 parts of each number, which the kernels of `split` write first.

If the radial kernel allows it, the product kernels compute squared distances and all sums as products of tokens
relative to the centre of the keys, as `tiled_forward.product_forward` does. A query for which the error of the products
would be too large is called far: its token becomes 0 and its squared norm infinite, so its weights are 0. The
difference kernels then add the far queries. For other radial kernels they compute everything.
"""
# ruff: noqa: N803, SIM102 - Triton: capital names for constants, no `and` with a constant

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from regard.backends.custom_op import Gradients
from regard.backends.triton.distance.inputs import BackwardRows, Inputs
from regard.backends.triton.distance.profiles import (
    per_squared_distance,
    row_parameter,
    weight_and_slope,
)
from regard.backends.triton.distance.split import (
    BLOCKS_PER_LOAD,
    TokenParts,
    ValueParts,
    backward_value_block,
    token_parts,
    value_parts,
)
from regard.backends.triton.distance.tiled_forward import tile_for
from regard.backends.triton.launch import (
    Tile,
    batch_operand,
    cdiv,
    launch,
    padded_size,
    token_operand,
    transposed,
)
from regard.backends.triton.primitives import (
    INFINITY,
    UNSPECIALIZED,
    batch_pointer,
    cuts_band,
    dot_tf32x3,
    in_band,
    key_range,
    load_split,
    load_transposed,
    query_range,
    row_offset,
    row_pointer,
    squared_distances,
    tf32_split,
)

# By the larger of the padded dimensions and the block of values. `python -m benchmarks.tiles` measures tiles on a GPU.
PRODUCT_QUERY_TILES = {32: Tile(128, 32, 8), 64: Tile(128, 64, 8, 1), 128: Tile(64, 64, 4, 1)}
PRODUCT_KEY_TILES = {32: Tile(32, 64, 4), 64: Tile(64, 128, 8, 1), 128: Tile(32, 64, 4, 1)}
DIFFERENCE_QUERY_TILES = {32: Tile(64, 32, 4), 64: Tile(64, 32, 4), 128: Tile(64, 32, 4)}
DIFFERENCE_KEY_TILES = {32: Tile(32, 64, 4, 1), 64: Tile(32, 64, 4, 1), 128: Tile(64, 64, 4, 1)}


def backward(
    inputs: Inputs, per_query: BackwardRows, *, by_products: bool, is_short: bool, for_queries: bool, for_keys: bool
) -> Gradients:
    """Return the gradients, each (outer, inner, tokens, dim); the gradient of the bias is (outer, inner, 1, keys).

    Args:
        inputs: the problem.
        per_query: what is known of each query.
        by_products: whether to compute squared distances by products, where their error allows it.
        is_short: whether the call is so short that copies of tokens would take longer than they save.
        for_queries: whether to compute the gradients of query and width.
        for_keys: whether to compute the gradients of key, value and bias.
    """
    values, tokens = value_parts(inputs, per_query), None
    if by_products:
        tokens = token_parts(inputs)
    elif not is_short:
        # Reading all queries is faster from transposed tokens, where a run of tokens is a run of memory. Cut off their
        # padding, because the shapes in `inputs` count the tokens.
        query, key = (transposed(x, 0.0)[..., : x.shape[-2]].mT for x in (inputs.query, inputs.key))
        inputs = inputs._replace(query=query, key=key)
    d_query = d_width = d_key = d_value = d_bias = None
    if for_queries:
        d_query, d_width = _query_gradients(inputs, values, tokens)
    if for_keys:
        d_key, d_value, d_bias = _key_gradients(inputs, values, tokens)
    return Gradients((d_query, d_key, d_width), d_value, d_bias)


def _query_gradients(inputs: Inputs, values: ValueParts, tokens: TokenParts | None) -> tuple[Tensor, Tensor]:
    """Return the gradients of query and width; `tokens` are given if products are used."""
    only_far = tokens is not None  # the product kernels compute the gradients of all other queries
    d_query, d_width = inputs.empty_for_queries(inputs.dim), inputs.empty_for_queries(1)
    arguments, largest_size = _pair_arguments(inputs)
    row_terms = values.row_terms
    shared = inputs.width, inputs.bias_or_dummy(row_terms), values.value, values.d_output
    if tokens is not None:
        tile = tile_for(PRODUCT_QUERY_TILES, largest_size)
        blocks = cdiv(inputs.queries, tile.queries)
        operands = tokens.query, tokens.query_squares, tokens.key, tokens.key_transposed, tokens.key_squares, *shared
        launch(
            product_query_gradients, blocks * inputs.batch_size, *(batch_operand(x) for x in operands), row_terms,
            d_query, d_width, **arguments, blocks=blocks, tile=tile,
        )  # fmt: skip
    tile = tile_for(DIFFERENCE_QUERY_TILES, largest_size)
    blocks = cdiv(inputs.queries, tile.queries)
    operands = *shared, row_terms if tokens is None else tokens.query_squares
    launch(
        difference_query_gradients, blocks * inputs.batch_size, token_operand(inputs.query), token_operand(inputs.key),
        *(batch_operand(x) for x in operands), row_terms, d_query, d_width,
        **arguments, blocks=blocks, ONLY_FAR=only_far, tile=tile,
    )  # fmt: skip
    return d_query[..., : inputs.queries].mT, d_width[..., : inputs.queries].mT


def _key_gradients(inputs: Inputs, values: ValueParts, tokens: TokenParts | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of key, value and bias; `tokens` are given if products are used."""
    only_far = tokens is not None  # the product kernels compute the sums over all other queries
    d_key, d_value = inputs.empty_for_keys(inputs.dim), inputs.empty_for_keys(inputs.value_dim)
    d_bias = inputs.empty_for_keys(1)
    arguments, largest_size = _pair_arguments(inputs)
    arguments["VALUE_DIM"] = inputs.value_dim
    chunks = cdiv(inputs.value_dim, arguments["BV"])
    value, d_output, d_output_transposed, row_terms = values
    shared = inputs.width, inputs.bias_or_dummy(row_terms), value, d_output, d_output_transposed
    if tokens is not None:
        tile = tile_for(PRODUCT_KEY_TILES, largest_size)
        blocks = cdiv(inputs.keys, tile.keys)
        operands = tokens.query, tokens.query_transposed, tokens.query_squares, tokens.key, tokens.key_squares, *shared
        launch(
            product_key_gradients, blocks * chunks * inputs.batch_size, *(batch_operand(x) for x in operands),
            row_terms, d_key, d_value, d_bias, **arguments, blocks=blocks, chunks=chunks, tile=tile,
        )  # fmt: skip
    tile = tile_for(DIFFERENCE_KEY_TILES, largest_size)
    blocks = cdiv(inputs.keys, tile.keys)
    squares, far = (row_terms, row_terms) if tokens is None else (tokens.query_squares, tokens.far)
    launch(
        difference_key_gradients, blocks * chunks * inputs.batch_size,
        token_operand(inputs.query), token_operand(inputs.key),
        *(batch_operand(x) for x in (*shared, squares, far)), row_terms, d_key, d_value, d_bias,
        **arguments, blocks=blocks, chunks=chunks, far_blocks=far.shape[-1], ONLY_FAR=only_far, tile=tile,
    )  # fmt: skip
    return d_key[..., : inputs.keys].mT, d_value[..., : inputs.keys].mT, d_bias[..., : inputs.keys]


def _pair_arguments(inputs: Inputs) -> tuple[dict[str, Any], int]:
    """Return the arguments that all kernels here have, and the size that their tiles depend on."""
    dims, block = padded_size(inputs.dim), backward_value_block(inputs.value_dim)
    sizes = {"PADDED_DIM": dims, "PADDED_VALUE_DIM": cdiv(inputs.value_dim, block) * block, "BV": block}
    return inputs.pair_arguments() | inputs.padded_lengths() | sizes, max(dims, block)


# --- By products -----------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=UNSPECIALIZED)
def product_query_gradients(
    query_parts, query_squares, key_parts, key_transposed, key_squares, width, bias, value_parts, d_output_parts,
    row_terms, d_query, d_width,
    inner, queries, keys, padded_queries, padded_keys, blocks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr,
    PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BM queries (DIM, padded_queries) and of their widths (padded_queries,).

    The other operands are those of `TokenParts` and `ValueParts`.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, PADDED_DIM)
    v = tl.arange(0, BV)
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    value_parts, d_output_parts = batch_pointer(value_parts, batch, inner), batch_pointer(d_output_parts, batch, inner)
    key_parts, key_transposed = batch_pointer(key_parts, batch, inner), batch_pointer(key_transposed, batch, inner)
    key_squares = batch_pointer(key_squares, batch, inner)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    row_terms += batch * 3 * padded_queries
    peak, inverse, delta = _load_row_terms(row_terms, m, padded_queries)
    query_square = tl.load(batch_pointer(query_squares, batch, inner) + m)
    query_parts = batch_pointer(query_parts, batch, inner)
    q_high, q_low = load_split(query_parts, m, d, padded_queries, PADDED_DIM)
    d_o_high, d_o_low = load_split(d_output_parts, m, v, padded_queries, PADDED_VALUE_DIM)
    product_sum = tl.zeros([BM, PADDED_DIM], tl.float32)
    d_squared_sum = tl.zeros([BM], tl.float32)
    width_sum = tl.zeros([BM], tl.float32)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        k_high, k_low = load_split(key_parts, n, d, padded_keys, PADDED_DIM)
        squared = query_square[:, None] + tl.load(key_squares + n)[None, :]
        squared = tl.maximum(squared - 2.0 * dot_tf32x3(q_high, q_low, k_high, k_low), 0.0)
        if PADDED_VALUE_DIM == BV:
            v_high, v_low = load_split(value_parts, n, v, padded_keys, PADDED_VALUE_DIM)
            d_weight = dot_tf32x3(d_o_high, d_o_low, v_high, v_low)
        else:
            d_weight = _value_products(
                d_output_parts, value_parts, m, n, padded_queries, padded_keys, PADDED_VALUE_DIM, BM, BN, BV
            )
        key_bias = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        d_z, z = _gradients_of_z(
            d_weight - delta[:, None], squared, scale, inverse, peak, key_bias, n[None, :] - m[:, None],
            first - (block * BM + BM - 1), first + BN - 1 - block * BM, band, PROFILE, HAS_BAND,
        )  # fmt: skip
        # A forbidden pair has gradient 0 and its distance may be infinite, and 0 * inf is NaN.
        width_sum += tl.sum(tl.where(d_z == 0.0, 0.0, d_z * z), 1)
        d_squared = per_squared_distance(d_z, scale[:, None], PROFILE)
        d_squared_sum += tl.sum(d_squared, 1)
        high, low = tf32_split(d_squared)
        kt_high, kt_low = load_transposed(key_transposed, n, d, padded_keys, PADDED_DIM)
        product_sum += dot_tf32x3(high, low, kt_high, kt_low)
    exists = m < queries
    tl.store(d_width + batch * padded_queries + m, -2.0 * width_sum * scale, mask=exists)
    q = _load_sum_of_parts(query_parts, m, d, padded_queries, PADDED_DIM)
    d_q = 2.0 * (q * d_squared_sum[:, None] - product_sum)
    pointers = row_pointer(d_query, batch * DIM + d, padded_queries)[None, :] + m[:, None]
    tl.store(pointers, d_q, mask=exists[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=UNSPECIALIZED)
def product_key_gradients(
    query_parts, query_transposed, query_squares, key_parts, key_squares, width, bias, value_parts, d_output_parts,
    d_output_transposed, row_terms, d_key, d_value, d_bias,
    inner, queries, keys, padded_queries, padded_keys, blocks, chunks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    PROFILE: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BN keys (DIM, padded_keys), BV dimensions of their values, and bias (padded_keys,).

    d_value: (VALUE_DIM, padded_keys). The other operands are those of `TokenParts` and `ValueParts`.
    """
    chunk = tl.program_id(0) % chunks
    batch, block = (tl.program_id(0) // chunks // blocks).to(tl.int64), tl.program_id(0) // chunks % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    v = chunk * BV + tl.arange(0, BV)
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    value_parts, d_output_parts = batch_pointer(value_parts, batch, inner), batch_pointer(d_output_parts, batch, inner)
    d_output_transposed = batch_pointer(d_output_transposed, batch, inner)
    query_parts = batch_pointer(query_parts, batch, inner)
    query_transposed = batch_pointer(query_transposed, batch, inner)
    query_squares = batch_pointer(query_squares, batch, inner)
    row_terms += batch * 3 * padded_queries
    key_bias = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
    key_square = tl.load(batch_pointer(key_squares, batch, inner) + n)
    key_parts = batch_pointer(key_parts, batch, inner)
    k_high, k_low = load_split(key_parts, n, d, padded_keys, PADDED_DIM)
    v_high, v_low = load_split(value_parts, n, v, padded_keys, PADDED_VALUE_DIM)
    product_sum = tl.zeros([BN, PADDED_DIM], tl.float32)
    d_squared_sum = tl.zeros([BN], tl.float32)
    d_key_bias = tl.zeros([BN], tl.float32)
    d_v = tl.zeros([BN, BV], tl.float32)
    begin, end = query_range(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
        peak, inverse, delta = _load_row_terms(row_terms, m, padded_queries)
        q_high, q_low = load_split(query_parts, m, d, padded_queries, PADDED_DIM)
        squared = key_square[:, None] + tl.load(query_squares + m)[None, :]
        squared = tl.maximum(squared - 2.0 * dot_tf32x3(k_high, k_low, q_high, q_low), 0.0)
        if PADDED_VALUE_DIM == BV:
            d_o_high, d_o_low = load_split(d_output_parts, m, v, padded_queries, PADDED_VALUE_DIM)
            d_weight = dot_tf32x3(v_high, v_low, d_o_high, d_o_low)
        else:
            d_weight = _value_products(
                value_parts, d_output_parts, n, m, padded_keys, padded_queries, PADDED_VALUE_DIM, BN, BM, BV
            )
        # Beyond the last key and query the squared norms are infinite, and the weights 0.
        weight, slope = _weights_and_slopes(
            squared, scale, inverse, peak, key_bias, squared < INFINITY, n[:, None] - m[None, :],
            block * BN - (first + BM - 1), block * BN + BN - 1 - first, band, PROFILE, HAS_BAND,
        )  # fmt: skip
        d_weight -= delta[None, :]
        high, low = tf32_split(weight)
        d_ot_high, d_ot_low = load_transposed(d_output_transposed, m, v, padded_queries, PADDED_VALUE_DIM)
        d_v += dot_tf32x3(high, low, d_ot_high, d_ot_low)
        d_key_bias += tl.sum(d_weight * weight, 1)
        d_squared = d_weight * slope
        d_squared_sum += tl.sum(d_squared, 1)
        high, low = tf32_split(d_squared)
        qt_high, qt_low = load_transposed(query_transposed, m, d, padded_queries, PADDED_DIM)
        product_sum += dot_tf32x3(high, low, qt_high, qt_low)
    exists = n < keys
    value_pointers = row_pointer(d_value, batch * VALUE_DIM + v, padded_keys)[None, :] + n[:, None]
    tl.store(value_pointers, d_v, mask=exists[:, None] & (v < VALUE_DIM)[None, :])
    if chunk == 0:
        tl.store(d_bias + batch * padded_keys + n, d_key_bias, mask=exists)
        k = _load_sum_of_parts(key_parts, n, d, padded_keys, PADDED_DIM)
        d_k = 2.0 * (k * d_squared_sum[:, None] - product_sum)
        key_pointers = row_pointer(d_key, batch * DIM + d, padded_keys)[None, :] + n[:, None]
        tl.store(key_pointers, d_k, mask=exists[:, None] & (d < DIM)[None, :])


@triton.jit
def _load_sum_of_parts(parts, t, x, padded_count, NUM_COLUMNS: tl.constexpr):
    """Return the sums of both parts (tokens, dimensions) of the tokens t.

    The callers read them again after their loop, because they would fill the registers during it.
    """
    pointers = parts + row_offset(t, NUM_COLUMNS)[:, None] + x[None, :]
    low = tl.load(pointers + row_offset(padded_count, NUM_COLUMNS), cache_modifier=".cg")
    return tl.load(pointers, cache_modifier=".cg") + low


# --- By differences --------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=UNSPECIALIZED)
def difference_query_gradients(
    query, key, width, bias, value_parts, d_output_parts, query_squares, row_terms, d_query, d_width,
    inner, queries, keys, padded_queries, padded_keys, blocks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, PROFILE: tl.constexpr,
    ONLY_FAR: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BM queries (DIM, padded_queries) and of their widths (padded_queries,).

    ONLY_FAR: write those of far queries only, which have infinite `query_squares`.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, PADDED_DIM)
    selected = m < queries
    query_step, key_step = query[4], key[4]
    query_tokens = batch_pointer(query, batch, inner) + m.to(tl.int64) * query[3]
    first_key, key_stride = batch_pointer(key, batch, inner), key[3]
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    value_parts, d_output_parts = batch_pointer(value_parts, batch, inner), batch_pointer(d_output_parts, batch, inner)
    begin, end = key_range(block * BM, block * BM + BM - 1, keys, band, BN, HAS_BAND)
    if ONLY_FAR:
        selected &= tl.load(batch_pointer(query_squares, batch, inner) + m) == INFINITY
        end = tl.where(tl.max(selected.to(tl.int32), 0) == 1, end, begin)
    scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
    row_terms += batch * 3 * padded_queries
    peak, inverse, delta = _load_row_terms(row_terms, m, padded_queries)
    d_q = tl.zeros([BM, PADDED_DIM], tl.float32)
    width_sum = tl.zeros([BM], tl.float32)
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        key_tokens = first_key + n.to(tl.int64) * key_stride
        squared = squared_distances(query_tokens, key_tokens, m, n, query_step, key_step, queries, keys, DIM, BM, BN)
        d_weight = _value_products(
            d_output_parts, value_parts, m, n, padded_queries, padded_keys, PADDED_VALUE_DIM, BM, BN, BV
        )
        key_bias = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
        d_z, z = _gradients_of_z(
            d_weight - delta[:, None], squared, scale, inverse, peak, key_bias, n[None, :] - m[:, None],
            first - (block * BM + BM - 1), first + BN - 1 - block * BM, band, PROFILE, HAS_BAND,
        )  # fmt: skip
        d_z = tl.where((n < keys)[None, :], d_z, 0.0)
        # A forbidden pair has gradient 0 and its distance may be infinite, and 0 * inf is NaN.
        width_sum += tl.sum(tl.where(d_z == 0.0, 0.0, d_z * z), 1)
        d_squared = per_squared_distance(d_z, scale[:, None], PROFILE)
        for i in range(DIM):
            q = tl.load(row_pointer(query_tokens, i, query_step), mask=m < queries, other=0.0).to(tl.float32)
            k = tl.load(row_pointer(key_tokens, i, key_step), mask=n < keys, other=0.0).to(tl.float32)
            difference = q[:, None] - k[None, :]
            d_q += tl.where((d == i)[None, :], tl.sum(d_squared * difference, 1)[:, None], 0.0)
    tl.store(d_width + batch * padded_queries + m, -2.0 * width_sum * scale, mask=selected)
    pointers = row_pointer(d_query, batch * DIM + d, padded_queries)[None, :] + m[:, None]
    tl.store(pointers, 2.0 * d_q, mask=selected[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=UNSPECIALIZED)
def difference_key_gradients(
    query, key, width, bias, value_parts, d_output_parts, d_output_transposed, query_squares, far, row_terms,
    d_key, d_value, d_bias,
    inner, queries, keys, padded_queries, padded_keys, blocks, chunks, far_blocks, band,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    PROFILE: tl.constexpr, ONLY_FAR: tl.constexpr, PER_QUERY: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_BAND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write the gradients of BN keys (DIM, padded_keys), BV dimensions of their values, and bias (padded_keys,).

    d_value: (VALUE_DIM, padded_keys).
    ONLY_FAR: add the share of far queries, which have infinite `query_squares`, to the gradients.
    far: whether a block has far queries, (far_blocks,).
    """
    chunk = tl.program_id(0) % chunks
    batch, block = (tl.program_id(0) // chunks // blocks).to(tl.int64), tl.program_id(0) // chunks % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    v = chunk * BV + tl.arange(0, BV)
    exists = n < keys
    query_step, key_step = query[4], key[4]
    key_tokens = batch_pointer(key, batch, inner) + n.to(tl.int64) * key[3]
    first_query, query_stride = batch_pointer(query, batch, inner), query[3]
    bias, width = batch_pointer(bias, batch, inner), batch_pointer(width, batch, inner)
    query_squares = batch_pointer(query_squares, batch, inner)
    value_parts, d_output_parts = batch_pointer(value_parts, batch, inner), batch_pointer(d_output_parts, batch, inner)
    d_output_transposed = batch_pointer(d_output_transposed, batch, inner)
    begin, end = query_range(block * BN, block * BN + BN - 1, queries, band, BM, HAS_BAND)
    if ONLY_FAR:
        end = tl.where(_any_flag(batch_pointer(far, batch, inner), far_blocks), end, begin)
    row_terms += batch * 3 * padded_queries
    key_bias = tl.load(bias + n) if HAS_BIAS else tl.zeros([BN], tl.float32)
    d_k = tl.zeros([BN, PADDED_DIM], tl.float32)
    d_key_bias = tl.zeros([BN], tl.float32)
    d_v = tl.zeros([BN, BV], tl.float32)
    for first in range(begin, end, BM):
        m = first + tl.arange(0, BM)
        selected = m < queries
        if ONLY_FAR:
            selected &= tl.load(query_squares + m) == INFINITY
        if tl.max(selected.to(tl.int32), 0) == 1:
            scale = row_parameter(width, m, queries, PROFILE, PER_QUERY, BM)
            peak, inverse, delta = _load_row_terms(row_terms, m, padded_queries)
            query_tokens = first_query + m.to(tl.int64) * query_stride
            squared = squared_distances(
                key_tokens, query_tokens, n, m, key_step, query_step, keys, queries, DIM, BN, BM
            )
            d_weight = _value_products(
                value_parts, d_output_parts, n, m, padded_keys, padded_queries, PADDED_VALUE_DIM, BN, BM, BV
            )
            weight, slope = _weights_and_slopes(
                squared, scale, inverse, peak, key_bias, exists[:, None] & selected[None, :], n[:, None] - m[None, :],
                block * BN - (first + BM - 1), block * BN + BN - 1 - first, band, PROFILE, HAS_BAND,
            )  # fmt: skip
            d_weight -= delta[None, :]
            d_key_bias += tl.sum(d_weight * weight, 1)
            high, low = tf32_split(weight)
            d_ot_high, d_ot_low = load_transposed(d_output_transposed, m, v, padded_queries, PADDED_VALUE_DIM)
            d_v += dot_tf32x3(high, low, d_ot_high, d_ot_low)
            d_squared = d_weight * slope
            for i in range(DIM):
                k = tl.load(row_pointer(key_tokens, i, key_step), mask=exists, other=0.0).to(tl.float32)
                q = tl.load(row_pointer(query_tokens, i, query_step), mask=m < queries, other=0.0).to(tl.float32)
                difference = k[:, None] - q[None, :]
                d_k += tl.where((d == i)[None, :], tl.sum(d_squared * difference, 1)[:, None], 0.0)
    if ONLY_FAR:
        exists &= end > begin  # without far queries there is nothing to add
    value_pointers = row_pointer(d_value, batch * VALUE_DIM + v, padded_keys)[None, :] + n[:, None]
    _store(value_pointers, d_v, exists[:, None] & (v < VALUE_DIM)[None, :], ONLY_FAR)
    if chunk == 0:
        _store(d_bias + batch * padded_keys + n, d_key_bias, exists, ONLY_FAR)
        key_pointers = row_pointer(d_key, batch * DIM + d, padded_keys)[None, :] + n[:, None]
        _store(key_pointers, 2.0 * d_k, exists[:, None] & (d < DIM)[None, :], ONLY_FAR)


@triton.jit
def _any_flag(flags, count):
    """Return whether any of the flags (count,) is set."""
    found = tl.zeros([BLOCKS_PER_LOAD], tl.int32)
    for first in range(0, count, BLOCKS_PER_LOAD):
        b = first + tl.arange(0, BLOCKS_PER_LOAD)
        found = tl.maximum(found, tl.load(flags + b, mask=b < count, other=0))
    return tl.max(found, 0) != 0


@triton.jit
def _store(pointers, gradient, mask, ADD: tl.constexpr):
    """Store, or add to what is stored; one program owns each address."""
    if ADD:
        gradient += tl.load(pointers, mask=mask, other=0.0)
    tl.store(pointers, gradient, mask=mask)


# --- By products and by differences ----------------------------------------------------------------------------


@triton.jit
def _load_row_terms(row_terms, m, padded_queries):
    """Return peak, inverse mass and delta of the queries m, from `ValueParts.row_terms` of a batch element."""
    peak = tl.load(row_terms + m)
    inverse = tl.load(row_pointer(row_terms, 1, padded_queries) + m)
    delta = tl.load(row_pointer(row_terms, 2, padded_queries) + m)
    return peak, inverse, delta


@triton.jit
def _value_products(left, right, a, b, padded_a, padded_b, NUM_COLUMNS: tl.constexpr, BA: tl.constexpr,
                    BB: tl.constexpr, BV: tl.constexpr):  # fmt: skip
    """Return dO v' or v dO' of a tile (BA, BB), from the rows a of `left` and b of `right`, BV dimensions at a time."""
    result = tl.zeros([BA, BB], tl.float32)
    for first in tl.static_range(0, NUM_COLUMNS, BV):
        v = first + tl.arange(0, BV)
        a_high, a_low = load_split(left, a, v, padded_a, NUM_COLUMNS)
        b_high, b_low = load_split(right, b, v, padded_b, NUM_COLUMNS)
        result += dot_tf32x3(a_high, a_low, b_high, b_low)
    return result


@triton.jit
def _gradients_of_z(d_weight, squared, scale, inverse, peak, key_bias, offset, least, most, band,
                    PROFILE: tl.constexpr, HAS_BAND: tl.constexpr):  # fmt: skip
    """Return the gradients of z (queries, keys), 0 for pairs outside the band, and z.

    d_weight: dO v' - delta.
    """
    _, slope, z = weight_and_slope(squared, scale[:, None], key_bias[None, :], peak[:, None], PROFILE)
    slope *= inverse[:, None]
    if HAS_BAND:
        if cuts_band(least, most, band):
            slope = tl.where(in_band(offset, band), slope, 0.0)
    return d_weight * slope, z


@triton.jit
def _weights_and_slopes(squared, scale, inverse, peak, key_bias, is_allowed, offset, least, most, band,
                        PROFILE: tl.constexpr, HAS_BAND: tl.constexpr):  # fmt: skip
    """Return the weights (keys, queries), and their derivatives with respect to the squared distances."""
    weight, slope, _ = weight_and_slope(squared, scale[None, :], key_bias[:, None], peak[None, :], PROFILE)
    if HAS_BAND:
        if cuts_band(least, most, band):
            is_allowed &= in_band(offset, band)
    weight = tl.where(is_allowed, weight * inverse[None, :], 0.0)
    slope = per_squared_distance(slope * inverse[None, :], scale[None, :], PROFILE)
    return weight, tl.where(is_allowed, slope, 0.0)
