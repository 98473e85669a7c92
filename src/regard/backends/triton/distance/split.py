"""Split tokens into TF32 parts for matrix products: the nearest TF32 number and the rest (`primitives`).

Queries and keys are relative to the approximate centre of the keys, the mean of a sample. Parts are stored as (2,
tokens, dimensions), and for sums over tokens transposed, (2, dimensions, tokens), because a matrix product reads the
numbers that it sums over from neighbouring addresses.

The functions `forward_parts`, `value_parts` and `token_parts` launch the kernels `write_..._parts`.
"""
# ruff: noqa: N803 - Triton: capital names for constants

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.distance.inputs import BackwardRows, Inputs
from regard.backends.triton.distance.profiles import row_parameter, squared_factor
from regard.backends.triton.launch import (
    PADDING,
    batch_operand,
    cdiv,
    empty_float32,
    launch,
    padded_length,
    padded_size,
    token_operand,
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
# The options of a launch of every kernel here.
OPTIONS = {"num_warps": 4, "num_stages": 2}
# Number of evenly spaced keys whose mean approximates the centre of the keys.
CENTRE_SAMPLE = tl.constexpr(64)
# A program computes up to this many dimensions of the output.
MAX_VALUE_BLOCK = 128
# With eight warps and products 16 wide, triton 3.6 reads beyond its shared memory (compute-sanitizer, H200).
MIN_BACKWARD_VALUE_BLOCK = 32

# Largest sum of |q|^2 and |k|^2, times `profiles.squared_factor`, for which products are used. The error of a score to
# base 2 is then at most 2^-16, and that of a weight 1 in 100,000.
MAX_SQUARED_NORMS = tl.constexpr(64.0)
# One load reads the largest squared norms, or the flags, of this many blocks.
BLOCKS_PER_LOAD = tl.constexpr(256)


def value_block(value_dim: int) -> int:
    """Return how many dimensions of the output a program computes."""
    return min(padded_size(value_dim), MAX_VALUE_BLOCK)


def backward_value_block(value_dim: int) -> int:
    """Return how many dimensions of the values a product of the backward kernels has."""
    return max(MIN_BACKWARD_VALUE_BLOCK, value_block(value_dim))


def split_size(num_columns: int) -> int:
    """Return how many tokens with a padded number of dimensions one program splits."""
    return min(PADDING, max(SPLIT_ELEMENTS // num_columns, 16))


# --- For both passes -------------------------------------------------------------------------------------------


@triton.jit
def sampled_keys(count):
    """Return the positions of the keys whose mean is the centre, (CENTRE_SAMPLE,)."""
    return (tl.arange(0, CENTRE_SAMPLE).to(tl.int64) * count) // CENTRE_SAMPLE


@triton.jit
def largest_squares(centre_and_norms, key_blocks, PADDED_DIM: tl.constexpr):
    """Return numbers (BLOCKS_PER_LOAD,) whose maximum is the largest squared norm of a key of a batch element."""
    largest = tl.zeros([BLOCKS_PER_LOAD], tl.float32)
    for first in range(0, key_blocks, BLOCKS_PER_LOAD):
        b = first + tl.arange(0, BLOCKS_PER_LOAD)
        norms = tl.load(centre_and_norms + PADDED_DIM + b, mask=b < key_blocks, other=0.0)
        largest = tl.maximum(largest, norms)
    return largest


# --- For the forward pass --------------------------------------------------------------------------------------


class ForwardParts(NamedTuple):
    """What `write_forward_parts` writes of keys and values.

    Attributes:
        key_parts: TF32 parts relative to the centre, (outer or 1, inner or 1, 2, padded keys, padded dim).
        value_parts: TF32 parts, (outer or 1, inner or 1, 2, padded value_dim, padded keys).
        key_squares: squared norms relative to the centre, (outer or 1, inner or 1, padded keys).
        centre_and_norms: the centre (padded dim,), then the largest squared norm of each block of keys (key_blocks,),
            (outer or 1, inner or 1, padded dim + key_blocks).
        key_blocks: number of blocks of keys.
    """

    key_parts: Tensor
    value_parts: Tensor
    key_squares: Tensor
    centre_and_norms: Tensor
    key_blocks: int


def forward_parts(inputs: Inputs) -> ForwardParts:
    """Split keys and values."""
    key, value = inputs.key.contiguous(), inputs.value.contiguous()
    dims, value_dims = padded_size(inputs.dim), padded_size(inputs.value_dim)
    count = padded_length(inputs.keys)
    size = split_size(max(dims, value_dims))
    key_blocks = count // size
    outer, inner = key.shape[:2]
    key_parts, key_squares = empty_float32(key, outer, inner, 2, count, dims), empty_float32(key, outer, inner, count)
    centre_and_norms = empty_float32(key, outer, inner, dims + key_blocks)
    value_parts = empty_float32(value, *value.shape[:2], 2, value_dims, count)
    key_programs, value_programs = (x.shape[0] * x.shape[1] * key_blocks for x in (key, value))
    launch(
        write_forward_parts, key_programs + value_programs,
        key, value, key_parts, value_parts, key_squares, centre_and_norms,
        count=inputs.keys, padded_count=count, blocks=key_blocks, key_programs=key_programs,
        DIM=inputs.dim, PADDED_DIM=dims, VALUE_DIM=inputs.value_dim, PADDED_VALUE_DIM=value_dims, BN=size, **OPTIONS,
    )  # fmt: skip
    return ForwardParts(key_parts, value_parts, key_squares, centre_and_norms, key_blocks)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def write_forward_parts(
    key, value, key_parts, value_parts, key_squares, centre_and_norms, count, padded_count, blocks, key_programs,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Split BN keys or values into TF32 parts; the first `key_programs` programs split keys, the others values.

    key, value: contiguous, (count, DIM) and (count, VALUE_DIM) for each batch element. The results are those of
    `ForwardParts`.
    """
    program = tl.program_id(0)
    if program < key_programs:
        batch, block = (program // blocks).to(tl.int64), program % blocks
        _write_forward_keys(
            key, key_parts, key_squares, centre_and_norms, batch, block, blocks, count, padded_count, DIM, PADDED_DIM,
            BN,
        )  # fmt: skip
    else:
        batch, block = ((program - key_programs) // blocks).to(tl.int64), (program - key_programs) % blocks
        _write_forward_values(value, value_parts, batch, block, count, padded_count, VALUE_DIM, PADDED_VALUE_DIM, BN)


@triton.jit
def _write_forward_keys(key, parts, squares, centre_and_norms, batch, block, blocks, count, padded_count,
                        DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Split BN keys relative to their centre; the squared norms beyond the last key are infinite."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    mean = tl.sum(_load_contiguous(key, batch, sampled_keys(count), d, count, DIM), 0) / CENTRE_SAMPLE
    tile = tl.where((n < count)[:, None], _load_contiguous(key, batch, n, d, count, DIM) - mean[None, :], 0.0)
    square = tl.sum(tile * tile, 1)
    tl.store(squares + batch * padded_count + n, tl.where(n < count, square, INFINITY))
    centre_and_norms += batch * (PADDED_DIM + blocks)
    tl.store(centre_and_norms + PADDED_DIM + block, tl.max(square, 0))
    if block == 0:
        tl.store(centre_and_norms + d, mean)
    high, low = tf32_split(tile)
    offsets = (batch * 2 * padded_count + n[:, None]) * PADDED_DIM + d[None, :]
    tl.store(parts + offsets, high)
    tl.store(parts + offsets + padded_count * PADDED_DIM, low)


@triton.jit
def _write_forward_values(value, parts, batch, block, count, padded_count, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
                          BN: tl.constexpr):  # fmt: skip
    """Split BN values and store them transposed, as the second product reads them."""
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    high, low = tf32_split(_load_contiguous(value, batch, n, d, count, DIM))
    offsets = (batch * 2 * PADDED_DIM + d[None, :]) * padded_count + n[:, None]
    tl.store(parts + offsets, high)
    tl.store(parts + offsets + padded_count * PADDED_DIM, low)


# Keys and values may be shared along different batch axes. In contiguous tokens the number of a batch element gives its
# address, so the kernel needs no strides, and no `inner` for each of the two.
@triton.jit
def _load_contiguous(tokens, batch, n, d, count, DIM: tl.constexpr):
    """Return tokens (n, d) of one batch element in float32, 0 beyond the last token and dimension."""
    offsets = (batch * count + n.to(tl.int64))[:, None] * DIM + d[None, :]
    return tl.load(tokens + offsets, mask=(n < count)[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float32)


# --- For the backward pass -------------------------------------------------------------------------------------
# Each kernel does everything for its operand, because at a few thousand tokens every launch leaves the GPU idle.


class ValueParts(NamedTuple):
    """TF32 parts of values and of the gradient of the output, and the terms of each query.

    Attributes:
        value: (outer or 1, inner or 1, 2, padded keys, padded value_dim).
        d_output: (outer, inner, 2, padded queries, padded value_dim).
        d_output_transposed: (outer, inner, 2, padded value_dim, padded queries).
        row_terms: peak, inverse mass (`inputs.ROW_STATS`) and delta of each query, (outer, inner, 3, padded queries).
    """

    value: Tensor
    d_output: Tensor
    d_output_transposed: Tensor
    row_terms: Tensor


class TokenParts(NamedTuple):
    """TF32 parts of queries and keys relative to the centre of the keys, with 0 for far queries (`tiled_backward`).

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


def value_parts(inputs: Inputs, per_query: BackwardRows) -> ValueParts:
    """Return the parts of values and of the gradient of the output."""
    block = backward_value_block(inputs.value_dim)
    value_dims, size = cdiv(inputs.value_dim, block) * block, split_size(block)
    sizes = {"DIM": inputs.value_dim, "PADDED_DIM": value_dims, "BN": size, "BV": block}
    outer, inner = inputs.value.shape[:2]
    count = padded_length(inputs.keys)
    blocks = count // size
    value = empty_float32(inputs.value, outer, inner, 2, count, value_dims)
    launch(
        write_value_parts, outer * inner * blocks, token_operand(inputs.value), value,
        inner=inner, count=inputs.keys, padded_count=count, blocks=blocks, **sizes, **OPTIONS,
    )  # fmt: skip
    count = padded_length(inputs.queries)
    blocks = count // size
    d_output = empty_float32(value, inputs.outer, inputs.inner, 2, count, value_dims)
    d_output_transposed = empty_float32(value, inputs.outer, inputs.inner, 2, value_dims, count)
    row_terms = inputs.empty_for_queries(3)
    launch(
        write_d_output_parts, inputs.batch_size * blocks,
        token_operand(per_query.d_output), token_operand(per_query.output), token_operand(per_query.d_log_mass),
        per_query.row_stats.contiguous(), d_output, d_output_transposed, row_terms,
        inner=inputs.inner, count=inputs.queries, padded_count=count, blocks=blocks, **sizes, **OPTIONS,
    )  # fmt: skip
    return ValueParts(value, d_output, d_output_transposed, row_terms)


def token_parts(inputs: Inputs) -> TokenParts:
    """Return the parts of queries and keys."""
    dims = padded_size(inputs.dim)
    size = split_size(dims)
    sizes = {"DIM": inputs.dim, "PADDED_DIM": dims, "BN": size}
    outer, inner = inputs.key.shape[:2]
    count = padded_length(inputs.keys)
    key_blocks = count // size
    key, key_transposed, key_squares = _empty_parts(inputs.key, outer, inner, count, dims)
    centre_and_norms = empty_float32(key, outer, inner, dims + key_blocks)
    launch(
        write_key_parts, outer * inner * key_blocks,
        token_operand(inputs.key), key, key_transposed, key_squares, centre_and_norms,
        inner=inner, count=inputs.keys, padded_count=count, blocks=key_blocks, **sizes, **OPTIONS,
    )  # fmt: skip
    # The parts of a query depend on the centre of its keys and on its width, so they are shared only along axes that
    # all three share.
    outer, inner = (max(x.shape[axis] for x in (inputs.query, inputs.key, inputs.width)) for axis in (0, 1))
    count = padded_length(inputs.queries)
    blocks = count // size
    query, query_transposed, query_squares = _empty_parts(inputs.query, outer, inner, count, dims)
    far = key.new_empty(outer, inner, blocks, dtype=torch.int32)
    launch(
        write_query_parts, outer * inner * blocks,
        token_operand(inputs.query), batch_operand(inputs.width), batch_operand(centre_and_norms),
        query, query_transposed, query_squares, far,
        inner=inner, count=inputs.queries, padded_count=count, blocks=blocks, key_blocks=key_blocks, **sizes,
        PROFILE=inputs.kernel.name, PER_QUERY=inputs.width.shape[-1] > 1, **OPTIONS,
    )  # fmt: skip
    return TokenParts(query, query_transposed, query_squares, far, key, key_transposed, key_squares)


def _empty_parts(like: Tensor, outer: int, inner: int, count: int, dims: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the parts of tokens, for the same transposed, and for squared norms."""
    parts, transposed_parts = (empty_float32(like, outer, inner, 2, *shape) for shape in ((count, dims), (dims, count)))
    return parts, transposed_parts, empty_float32(like, outer, inner, count)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def write_key_parts(
    key, parts, transposed_parts, squares, centre_and_norms, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN keys relative to their centre; write their squared norms (padded_count,) and the centre.

    Keys that are not finite become 0, and their squared norms are infinite, as beyond the last key.

    centre_and_norms: the centre (PADDED_DIM,), then the largest squared norm of each block (blocks,), infinite if a key
    of the block is not finite.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    tokens = batch_pointer(key, batch, inner), key[3], key[4]
    mean = tl.sum(load_tokens(tokens, sampled_keys(count), d, count, DIM), 0) / CENTRE_SAMPLE
    tile = tl.where(
        (n < count)[:, None] & (d < DIM)[None, :], load_tokens(tokens, n, d, count, DIM) - mean[None, :], 0.0
    )
    square = tl.sum(tile * tile, 1)
    is_finite = square < INFINITY
    centre_and_norms += batch * (PADDED_DIM + blocks)
    # Infinity instead of NaN, because tl.max may ignore NaN.
    tl.store(centre_and_norms + PADDED_DIM + block, tl.max(tl.where(is_finite, square, INFINITY), 0))
    if block == 0:
        tl.store(centre_and_norms + d, mean)
    tl.store(squares + batch * padded_count + n, tl.where(is_finite & (n < count), square, INFINITY))
    tile = tl.where(is_finite[:, None], tile, 0.0)
    store_split(tile, parts, transposed_parts, batch, n, d, padded_count, PADDED_DIM, TRANSPOSED=True)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def write_query_parts(
    query, width, centre_and_norms, parts, transposed_parts, squares, far, inner, count, padded_count, blocks,
    key_blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Split BN queries relative to the centre of the keys; write their squared norms (padded_count,).

    Far queries become 0, and their squared norms are infinite, as beyond the last query.

    far: whether a block has far queries, (blocks,).
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    d = tl.arange(0, PADDED_DIM)
    centre_and_norms, exists = batch_pointer(centre_and_norms, batch, inner), m < count
    tokens = batch_pointer(query, batch, inner), query[3], query[4]
    tile = load_tokens(tokens, m, d, count, DIM) - tl.load(centre_and_norms + d)[None, :]
    tile = tl.where(exists[:, None] & (d < DIM)[None, :], tile, 0.0)
    square = tl.sum(tile * tile, 1)
    largest = largest_squares(centre_and_norms, key_blocks, PADDED_DIM)
    scale = row_parameter(batch_pointer(width, batch, inner), m, count, PROFILE, PER_QUERY, BN)
    is_near = squared_factor(scale, PROFILE) * (square + tl.max(largest, 0)) <= MAX_SQUARED_NORMS
    tl.store(far + batch * blocks + block, tl.max((exists & ~is_near).to(tl.int32), 0))
    tl.store(squares + batch * padded_count + m, tl.where(exists & is_near, square, INFINITY))
    tile = tl.where(is_near[:, None], tile, 0.0)
    store_split(tile, parts, transposed_parts, batch, m, d, padded_count, PADDED_DIM, TRANSPOSED=True)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def write_value_parts(
    value, parts, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Split BN values, BV dimensions at a time."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    tokens = batch_pointer(value, batch, inner), value[3], value[4]
    for first in tl.static_range(0, PADDED_DIM, BV):
        v = first + tl.arange(0, BV)
        tile = load_tokens(tokens, n, v, count, DIM)
        store_split(tile, parts, parts, batch, n, v, padded_count, PADDED_DIM, TRANSPOSED=False)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def write_d_output_parts(
    d_output, output, d_log_mass, row_stats, parts, transposed_parts, row_terms, inner, count, padded_count, blocks,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Split the gradients of BN outputs, BV dimensions at a time, and write the terms of these rows.

    row_stats: (count, 3) for each batch element, see `inputs.ROW_STATS`.
    row_terms: peak, inverse mass and delta = dO'o - dlog_mass of each query, (3, padded_count) for each batch element.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    exists = m < count
    tokens = batch_pointer(d_output, batch, inner), d_output[3], d_output[4]
    outputs = batch_pointer(output, batch, inner), output[3], output[4]
    delta = tl.zeros([BN], tl.float32)
    for first in tl.static_range(0, PADDED_DIM, BV):
        v = first + tl.arange(0, BV)
        tile = load_tokens(tokens, m, v, count, DIM)
        delta += tl.sum(tile * load_tokens(outputs, m, v, count, DIM), 1)
        store_split(tile, parts, transposed_parts, batch, m, v, padded_count, PADDED_DIM, TRANSPOSED=True)
    pointers = batch_pointer(d_log_mass, batch, inner) + m.to(tl.int64) * d_log_mass[3]
    delta -= tl.load(pointers, mask=exists, other=0.0)
    row_terms += batch * 3 * padded_count
    row_stats += (batch * count + m) * 3
    tl.store(row_terms + m, tl.load(row_stats, mask=exists, other=0.0))
    tl.store(row_pointer(row_terms, 1, padded_count) + m, tl.load(row_stats + 1, mask=exists, other=0.0))
    tl.store(row_pointer(row_terms, 2, padded_count) + m, delta)
