"""Split tokens into TF32 parts for matrix products: the nearest TF32 number and the rest (`primitives`).

Queries and keys are relative to the centre of the keys. Parts are stored as (2, tokens, dimensions), and for sums over
tokens transposed, (2, dimensions, tokens), because a matrix product reads the numbers that it sums over from
neighbouring addresses.
"""
# ruff: noqa: N803 - Triton: capital names for constants

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.distance.inputs import Inputs, Rows
from regard.backends.triton.distance.profiles import exponent_scale, row_scale
from regard.backends.triton.launch import (
    PADDING,
    Tile,
    batch_strides,
    cdiv,
    empty_float32,
    launch,
    padded_length,
    padded_width,
    token_strides,
)
from regard.backends.triton.primitives import (
    INFINITY,
    UNSPECIALIZED,
    batch_pointer,
    load_tokens,
    row_pointer,
    store_split,
    tf32_split,
)

# Number of elements that one program splits.
SPLIT_ELEMENTS = 8192
# A program computes up to this many dimensions of the output.
MAX_VALUE_TILE = 128
# With eight warps and products 16 wide, triton 3.6 reads beyond its shared memory (compute-sanitizer, H200).
MIN_BACKWARD_VALUE_TILE = 32

# Largest sum of |q|^2 and |k|^2, in units of the exponent, for which products are used. The error of a score to base 2
# is then at most 2^-16, and that of a weight 1 in 100,000.
MAX_PRODUCT_TERM = tl.constexpr(64.0)
# One load reads the largest norms, or the flags, of this many blocks.
BLOCKS_PER_LOAD = tl.constexpr(256)


def value_tile(value_dim: int) -> int:
    """Return how many dimensions of the output a program computes."""
    return min(padded_width(value_dim), MAX_VALUE_TILE)


def backward_value_tile(value_dim: int) -> int:
    """Return how many dimensions of the values a product of the backward kernels has."""
    return max(MIN_BACKWARD_VALUE_TILE, value_tile(value_dim))


def split_size(width: int) -> int:
    """Return how many tokens of a padded size one program splits."""
    return min(PADDING, max(SPLIT_ELEMENTS // width, 16))


# --- For the forward pass --------------------------------------------------------------------------------------


def forward_parts(inputs: Inputs) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], int]:
    """Split keys and values.

    Returns:
        key_parts, value_parts, key_squares and centre as `split_keys_and_values` writes them, and the number of blocks
        of keys.
    """
    key, value = inputs.key.contiguous(), inputs.value.contiguous()
    dims, value_dims = padded_width(inputs.dim), padded_width(inputs.value_dim)
    count = padded_length(inputs.keys)
    size = split_size(max(dims, value_dims))
    key_blocks = count // size
    outer, inner = key.shape[:2]
    key_parts, key_squares = empty_float32(key, outer, inner, 2, count, dims), empty_float32(key, outer, inner, count)
    centre = empty_float32(key, outer, inner, dims + key_blocks)
    value_parts = empty_float32(value, *value.shape[:2], 2, value_dims, count)
    key_programs, value_programs = (x.shape[0] * x.shape[1] * key_blocks for x in (key, value))
    launch(
        split_keys_and_values, key_programs + value_programs, key, value, key_parts, value_parts, key_squares, centre,
        count=inputs.keys, padded_count=count, blocks=key_blocks, key_programs=key_programs,
        DIM=inputs.dim, PADDED_DIM=dims, VALUE_DIM=inputs.value_dim, PADDED_VALUE_DIM=value_dims,
        tile=Tile(1, size, 4),
    )  # fmt: skip
    return (key_parts, value_parts, key_squares, centre), key_blocks


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_keys_and_values(
    key, value, key_parts, value_parts, key_squares, centre, count, padded_count, blocks, key_programs,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN keys or values into TF32 parts; the first `key_programs` programs split keys, the others values.

    key, value: contiguous, (count, DIM) and (count, VALUE_DIM) for each batch element.
    key_parts: (2, padded_count, PADDED_DIM), the keys relative to their centre.
    value_parts: (2, PADDED_VALUE_DIM, padded_count).
    key_squares: squared norms (padded_count,).
    centre: the centre (PADDED_DIM,), then the largest squared norm of each block (blocks,).
    """
    program = tl.program_id(0)
    if program < key_programs:
        batch, block = (program // blocks).to(tl.int64), program % blocks
        _split_keys(key, key_parts, key_squares, centre, batch, block, blocks, count, padded_count, DIM, PADDED_DIM, BN)
    else:
        batch, block = ((program - key_programs) // blocks).to(tl.int64), (program - key_programs) % blocks
        _split_values(value, value_parts, batch, block, count, padded_count, VALUE_DIM, PADDED_VALUE_DIM, BN)


@triton.jit
def _split_keys(key, parts, squares, centre, batch, block, blocks, count, padded_count, DIM: tl.constexpr,
                PADDED_DIM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Split BN keys relative to the mean of 64 keys; the squared norms beyond the last key are infinite."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    sample = (tl.arange(0, 64).to(tl.int64) * count) // 64
    mean = tl.sum(_load_contiguous(key, batch, sample, d, count, DIM), 0) / 64.0
    tile = tl.where((n < count)[:, None], _load_contiguous(key, batch, n, d, count, DIM) - mean[None, :], 0.0)
    square = tl.sum(tile * tile, 1)
    tl.store(squares + batch * padded_count + n, tl.where(n < count, square, INFINITY))
    centre += batch * (PADDED_DIM + blocks)
    tl.store(centre + PADDED_DIM + block, tl.max(square, 0))
    if block == 0:
        tl.store(centre + d, mean)
    high, low = tf32_split(tile)
    place = (batch * 2 * padded_count + n[:, None]) * PADDED_DIM + d[None, :]
    tl.store(parts + place, high)
    tl.store(parts + place + padded_count * PADDED_DIM, low)


@triton.jit
def _split_values(value, parts, batch, block, count, padded_count, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
                  BN: tl.constexpr):  # fmt: skip
    """Split BN values and store them transposed, as the second product reads them."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    high, low = tf32_split(_load_contiguous(value, batch, n, d, count, DIM))
    place = (batch * 2 * PADDED_DIM + d[None, :]) * padded_count + n[:, None]
    tl.store(parts + place, high)
    tl.store(parts + place + padded_count * PADDED_DIM, low)


@triton.jit
def _load_contiguous(tokens, batch, n, d, count, DIM: tl.constexpr):
    """Return tokens (n, d) of one batch element in float32, 0 beyond the last token and dimension."""
    place = (batch * count + n.to(tl.int64))[:, None] * DIM + d[None, :]
    return tl.load(tokens + place, mask=(n < count)[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float32)


# --- For the backward pass -------------------------------------------------------------------------------------
# One kernel for each operand, because at a few thousand tokens each further launch would leave a GPU idle.


class ValueParts(NamedTuple):
    """TF32 parts of values and of the gradient of the output, and the terms of each query.

    Attributes:
        value: (outer or 1, inner or 1, 2, padded keys, padded value_dim).
        d_output: (outer, inner, 2, padded queries, padded value_dim).
        d_output_transposed: (outer, inner, 2, padded value_dim, padded queries).
        row_terms: peak, inverse mass and delta of each query, (outer, inner, 3, padded queries).
    """

    value: Tensor
    d_output: Tensor
    d_output_transposed: Tensor
    row_terms: Tensor


class TokenParts(NamedTuple):
    """TF32 parts of queries and keys relative to the centre of the keys, with 0 for far queries.

    Attributes:
        query: (outer or 1, inner or 1, 2, padded queries, padded dim).
        query_transposed: (outer or 1, inner or 1, 2, padded dim, padded queries).
        query_squares: squared norms, infinite for far queries, (outer or 1, inner or 1, padded queries).
        far: whether a block of queries has far queries, int32 (outer or 1, inner or 1, blocks).
        key: (outer or 1, inner or 1, 2, padded keys, padded dim).
        key_transposed: (outer or 1, inner or 1, 2, padded dim, padded keys).
        key_squares: squared norms, (outer or 1, inner or 1, padded keys).
    """

    query: Tensor
    query_transposed: Tensor
    query_squares: Tensor
    far: Tensor
    key: Tensor
    key_transposed: Tensor
    key_squares: Tensor


def value_parts(inputs: Inputs, rows: Rows) -> ValueParts:
    """Return the parts of values and of the gradient of the output."""
    width = backward_value_tile(inputs.value_dim)
    value_dims, tile = cdiv(inputs.value_dim, width) * width, Tile(width, split_size(width), 4)
    sizes = {"DIM": inputs.value_dim, "PADDED_DIM": value_dims}
    outer, inner = inputs.value.shape[:2]
    count = padded_length(inputs.keys)
    blocks = count // tile.keys
    value = empty_float32(inputs.value, outer, inner, 2, count, value_dims)
    launch(
        split_values, outer * inner * blocks, token_strides(inputs.value), value,
        inner=inner, count=inputs.keys, padded_count=count, blocks=blocks, **sizes, tile=tile,
    )  # fmt: skip
    count = padded_length(inputs.queries)
    blocks = count // tile.keys
    d_output = empty_float32(value, inputs.outer, inputs.inner, 2, count, value_dims)
    d_output_transposed = empty_float32(value, inputs.outer, inputs.inner, 2, value_dims, count)
    row_terms = inputs.empty_for_queries(3)
    launch(
        split_d_output, inputs.batch_size * blocks,
        token_strides(rows.d_output), token_strides(rows.output), token_strides(rows.d_log_mass),
        rows.stats.contiguous(), d_output, d_output_transposed, row_terms,
        inner=inputs.inner, count=inputs.queries, padded_count=count, blocks=blocks, **sizes, tile=tile,
    )  # fmt: skip
    return ValueParts(value, d_output, d_output_transposed, row_terms)


def token_parts(inputs: Inputs) -> TokenParts:
    """Return the parts of queries and keys."""
    dims = padded_width(inputs.dim)
    tile, sizes = Tile(1, split_size(dims), 4), {"DIM": inputs.dim, "PADDED_DIM": dims}
    outer, inner = inputs.key.shape[:2]
    count = padded_length(inputs.keys)
    key_blocks = count // tile.keys
    key, key_transposed, key_squares = _empty_parts(inputs.key, outer, inner, count, dims)
    centre = empty_float32(key, outer, inner, dims + key_blocks)
    launch(
        split_keys, outer * inner * key_blocks, token_strides(inputs.key), key, key_transposed, key_squares, centre,
        inner=inner, count=inputs.keys, padded_count=count, blocks=key_blocks, **sizes, tile=tile,
    )  # fmt: skip
    # The parts of a query depend on the centre of its keys and on its width, so they are shared only along axes that
    # all three share.
    outer, inner = (max(x.shape[axis] for x in (inputs.query, inputs.key, inputs.width)) for axis in (0, 1))
    count = padded_length(inputs.queries)
    blocks = count // tile.keys
    query, query_transposed, query_squares = _empty_parts(inputs.query, outer, inner, count, dims)
    far = key.new_empty(outer, inner, blocks, dtype=torch.int32)
    launch(
        split_queries, outer * inner * blocks,
        token_strides(inputs.query), batch_strides(inputs.width), batch_strides(centre),
        query, query_transposed, query_squares, far,
        inner=inner, count=inputs.queries, padded_count=count, blocks=blocks, key_blocks=key_blocks, **sizes,
        PROFILE=inputs.kernel.name, PER_QUERY=inputs.width.shape[-1] > 1, tile=tile,
    )  # fmt: skip
    return TokenParts(query, query_transposed, query_squares, far, key, key_transposed, key_squares)


def _empty_parts(like: Tensor, outer: int, inner: int, count: int, dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the parts of tokens, for the same transposed, and for squared norms."""
    parts, transposed_parts = (empty_float32(like, outer, inner, 2, *shape) for shape in ((count, dims), (dims, count)))
    return parts, transposed_parts, empty_float32(like, outer, inner, count)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_keys(
    key, parts, transposed_parts, squares, centre, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN keys relative to the mean of 64 keys; write their squared norms (padded_count,) and the centre.

    Keys that are not finite become 0, and their squared norms are infinite, as beyond the last key.

    centre: the centre (PADDED_DIM,), then the largest squared norm of each block (blocks,), infinite if a key of the
    block is not finite.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    tokens = batch_pointer(key, batch, inner), key[3], key[4]
    sample = (tl.arange(0, 64).to(tl.int64) * count) // 64
    mean = tl.sum(load_tokens(tokens, sample, d, count, DIM), 0) / 64.0
    tile = tl.where(
        (n < count)[:, None] & (d < DIM)[None, :], load_tokens(tokens, n, d, count, DIM) - mean[None, :], 0.0
    )
    square = tl.sum(tile * tile, 1)
    is_finite = square < INFINITY
    centre += batch * (PADDED_DIM + blocks)
    # Infinity instead of NaN, because tl.max may ignore NaN.
    tl.store(centre + PADDED_DIM + block, tl.max(tl.where(is_finite, square, INFINITY), 0))
    if block == 0:
        tl.store(centre + d, mean)
    tl.store(squares + batch * padded_count + n, tl.where(is_finite & (n < count), square, INFINITY))
    tile = tl.where(is_finite[:, None], tile, 0.0)
    store_split(tile, parts, transposed_parts, batch, n, d, padded_count, PADDED_DIM, TRANSPOSED=True)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_queries(
    query, width, centre, parts, transposed_parts, squares, far, inner, count, padded_count, blocks, key_blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN queries relative to the centre of the keys; write their squared norms (padded_count,).

    Far queries become 0, and their squared norms are infinite, as beyond the last query.

    far: whether a block has far queries, (blocks,).
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    centre, exists = batch_pointer(centre, batch, inner), m < count
    tokens = batch_pointer(query, batch, inner), query[3], query[4]
    tile = load_tokens(tokens, m, d, count, DIM) - tl.load(centre + d)[None, :]
    tile = tl.where(exists[:, None] & (d < DIM)[None, :], tile, 0.0)
    square = tl.sum(tile * tile, 1)
    largest = tl.zeros([BLOCKS_PER_LOAD], tl.float32)
    for first in range(0, key_blocks, BLOCKS_PER_LOAD):
        b = first + tl.arange(0, BLOCKS_PER_LOAD)
        largest = tl.maximum(largest, tl.load(centre + PADDED_DIM + b, mask=b < key_blocks, other=0.0))
    scale = row_scale(batch_pointer(width, batch, inner), m, count, PROFILE, PER_QUERY, BN)
    is_near = exponent_scale(scale, PROFILE) * (square + tl.max(largest, 0)) <= MAX_PRODUCT_TERM
    tl.store(far + batch * blocks + block, tl.max((exists & ~is_near).to(tl.int32), 0))
    tl.store(squares + batch * padded_count + m, tl.where(exists & is_near, square, INFINITY))
    tile = tl.where(is_near[:, None], tile, 0.0)
    store_split(tile, parts, transposed_parts, batch, m, d, padded_count, PADDED_DIM, TRANSPOSED=True)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_values(
    value, parts, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN values, BM dimensions at a time."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    tokens = batch_pointer(value, batch, inner), value[3], value[4]
    for first in tl.static_range(0, PADDED_DIM, BM):
        v = first + tl.arange(0, BM)
        tile = load_tokens(tokens, n, v, count, DIM)
        store_split(tile, parts, parts, batch, n, v, padded_count, PADDED_DIM, TRANSPOSED=False)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_d_output(
    d_output, output, d_log_mass, row_stats, parts, transposed_parts, row_terms, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split the gradients of BN outputs, BM dimensions at a time, and write the terms of these rows.

    row_stats: peak, inverse mass and redo flag of each query, (count, 3) for each batch element.
    row_terms: peak, inverse mass and delta = dO'o - dlog_mass of each query, (3, padded_count) for each batch element.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    exists = m < count
    tokens = batch_pointer(d_output, batch, inner), d_output[3], d_output[4]
    outputs = batch_pointer(output, batch, inner), output[3], output[4]
    delta = tl.zeros([BN], tl.float32)
    for first in tl.static_range(0, PADDED_DIM, BM):
        v = first + tl.arange(0, BM)
        tile = load_tokens(tokens, m, v, count, DIM)
        delta += tl.sum(tile * load_tokens(outputs, m, v, count, DIM), 1)
        store_split(tile, parts, transposed_parts, batch, m, v, padded_count, PADDED_DIM, TRANSPOSED=True)
    place = batch_pointer(d_log_mass, batch, inner) + m.to(tl.int64) * d_log_mass[3]
    delta -= tl.load(place, mask=exists, other=0.0)
    row_terms += batch * 3 * padded_count
    row_stats += (batch * count + m) * 3
    tl.store(row_terms + m, tl.load(row_stats, mask=exists, other=0.0))
    tl.store(row_pointer(row_terms, 1, padded_count) + m, tl.load(row_stats + 1, mask=exists, other=0.0))
    tl.store(row_pointer(row_terms, 2, padded_count) + m, delta)
