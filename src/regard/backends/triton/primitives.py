"""Device functions that the kernels of distances and additive scores share.

Names in kernels: m are the positions of queries and n those of keys, t those of tokens of either side; d are dimensions
of queries and keys, v dimensions of values, h hidden units, x dimensions of either kind. q, k and d_o are what was
loaded of queries, keys and the gradient of the output. BM, BN and BV are the sizes of a block of m, n and v. `batch` is
a batch element.

An operand of a kernel is a tuple: a pointer, the strides of the two batch axes (0 where it is shared), and, if the
kernel reads tokens as the caller stored them, the strides of tokens and dimensions. Transposed tokens are float32
(dimensions, tokens) for each batch element, padded to a multiple of every tile (`launch.transposed`).

Matrix products of float32 numbers use three TF32 products: each number is split into its nearest TF32 number, which has
11 bits, and the rest. Of the four products of parts the smallest is left out, so the error is 2^-22 of the product.
"""
# ruff: noqa: N803 - Triton's conventions: capital names for constants

import triton
import triton.language as tl

# Arguments that change from call to call. Triton would otherwise compile variants for 1 and for multiples of 16.
UNSPECIALIZED = (
    "inner", "queries", "keys", "count", "blocks", "chunks", "row_blocks", "key_blocks", "far_blocks", "own_blocks",
    "key_programs", "query_programs", "query_inner", "key_inner", "first_batch", "num_batch", "parts",
)  # fmt: skip

INFINITY = tl.constexpr(float("inf"))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def batch_pointer(operand, batch, inner):
    """Return the pointer to an operand's part for one batch element."""
    outer = (batch // inner).to(tl.int64)
    return operand[0] + outer * operand[1] + (batch % inner).to(tl.int64) * operand[2]


@triton.jit
def row_offset(row, num_columns):
    """Return the offset of a row of a matrix, in 64 bits."""
    return tl.cast(row, tl.int64) * num_columns


@triton.jit
def row_pointer(pointer, row, num_columns):
    """Return the pointer to a row of a matrix."""
    return pointer + row_offset(row, num_columns)


@triton.jit
def load_tokens(tokens, t, x, count, DIM: tl.constexpr):
    """Return tokens (tokens, dimensions) in float32, 0 beyond the last token and dimension.

    tokens: the pointer of a batch element, the strides of tokens and of dimensions.
    """
    pointers = tokens[0] + t.to(tl.int64)[:, None] * tokens[1] + x.to(tl.int64)[None, :] * tokens[2]
    return tl.load(pointers, mask=(t < count)[:, None] & (x < DIM)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_transposed(tokens, t, count, target, step, DIM: tl.constexpr, BD: tl.constexpr):
    """Write the tokens t in float32 to target, a pointer (tokens,) to the first dimension; 0 beyond the last token.

    tokens: as for `load_tokens`.
    step: from one dimension to the next in target, so that a run of tokens is a run of memory.
    """
    for first in range(0, DIM, BD):
        d = first + tl.arange(0, BD)
        tile = load_tokens(tokens, t, d, count, DIM)
        tl.store(target[:, None] + d[None, :].to(tl.int64) * step, tile, mask=(d < DIM)[None, :])


@triton.jit
def squared_distances(query, key, m, n, query_step, key_step, queries, keys, DIM: tl.constexpr, BM: tl.constexpr,
                      BN: tl.constexpr):  # fmt: skip
    """Return |q - k|^2 (BM, BN), summed dimension by dimension: exact at any offset, and equal in all kernels.

    query, key: pointers to the tokens m and n; a step leads from one dimension to the next.
    """
    squared = tl.zeros([BM, BN], tl.float32)
    for d in range(DIM):
        q = tl.load(row_pointer(query, d, query_step), mask=m < queries, other=0.0).to(tl.float32)
        k = tl.load(row_pointer(key, d, key_step), mask=n < keys, other=0.0).to(tl.float32)
        difference = q[:, None] - k[None, :]
        squared = tl.fma(difference, difference, squared)
    return squared


# --- Bands -----------------------------------------------------------------------------------------------------


@triton.jit
def in_band(offset, band):
    """Return whether an offset key - query is in the band and not in its gap."""
    is_between = (offset >= band[0]) & (offset <= band[1])
    return is_between & ((offset < band[2]) | (offset > band[3]))


@triton.jit
def cuts_band(least, most, band):
    """Return whether some offset from `least` to `most` may be forbidden."""
    return (least < band[0]) | (most > band[1]) | ((least <= band[3]) & (most >= band[2]))


@triton.jit
def outside_band(least, most, band):
    """Return whether no offset from `least` to `most` is in the band; its gap is ignored."""
    return (most < band[0]) | (least > band[1])


@triton.jit
def key_range(first, last, keys, band, BN: tl.constexpr, HAS_BAND: tl.constexpr):
    """Return the range of keys, from a multiple of BN, to which the queries from `first` to `last` may attend."""
    begin = 0
    end = keys
    if HAS_BAND:
        begin = tl.maximum(first + band[0], 0) // BN * BN
        end = tl.minimum(last + band[1] + 1, keys)
    return begin, end


@triton.jit
def query_range(first, last, queries, band, BM: tl.constexpr, HAS_BAND: tl.constexpr):
    """Return the range of queries, from a multiple of BM, that may attend to the keys from `first` to `last`."""
    begin = 0
    end = queries
    if HAS_BAND:
        begin = tl.maximum(first - band[1], 0) // BM * BM
        end = tl.minimum(last - band[0] + 1, queries)
    return begin, end


# --- Matrix products -------------------------------------------------------------------------------------------


@triton.jit
def twice_dot(left, right):
    """Return 2 left @ right, for adding to a long sum; the caller halves the sum at the end.

    The factor 2 keeps the compiler from adding to the sum inside the matrix units, which truncate. Over thousands of
    keys such a sum would drift by 1e-5.
    """
    return 2.0 * tl.dot(left, right, input_precision="tf32x3")


@triton.jit
def tf32_split(number):
    """Return the nearest TF32 number, and the rest."""
    bits = number.to(tl.int32, bitcast=True)
    high = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, number - high


@triton.jit
def dot_tf32x3(left_high, left_low, right_high, right_low):
    """Return the product of left (a, x) and the transpose of right (b, x); the smallest products are added first.

    The caller adds the result to a long sum itself, because the matrix units truncate.
    """
    total = tl.dot(left_low, right_high.T, input_precision="tf32")
    total = tl.dot(left_high, right_low.T, acc=total, input_precision="tf32")
    return tl.dot(left_high, right_high.T, acc=total, input_precision="tf32")


@triton.jit
def load_split(parts, t, x, padded_count, NUM_COLUMNS: tl.constexpr):
    """Return both parts (tokens, dimensions) of the tokens t from (2, padded_count, NUM_COLUMNS)."""
    pointers = parts + row_offset(t, NUM_COLUMNS)[:, None] + x[None, :]
    return tl.load(pointers), tl.load(pointers + row_offset(padded_count, NUM_COLUMNS))


@triton.jit
def load_transposed(parts, t, x, padded_count, NUM_COLUMNS: tl.constexpr):
    """Return both parts (dimensions, tokens) of the tokens t from (2, NUM_COLUMNS, padded_count)."""
    pointers = parts + row_offset(x, padded_count)[:, None] + t[None, :]
    return tl.load(pointers), tl.load(pointers + row_offset(padded_count, NUM_COLUMNS))


@triton.jit
def store_split(tile, parts, transposed_parts, batch, t, x, padded_count, NUM_COLUMNS: tl.constexpr,
                TRANSPOSED: tl.constexpr):  # fmt: skip
    """Store both parts of tokens (tokens, dimensions) of a batch element, and if TRANSPOSED also transposed.

    parts: (2, padded_count, NUM_COLUMNS) for each batch element; transposed_parts: (2, NUM_COLUMNS, padded_count).
    """
    high, low = tf32_split(tile)
    pointers = row_pointer(parts, batch * 2 * padded_count + t, NUM_COLUMNS)[:, None] + x[None, :]
    tl.store(pointers, high)
    tl.store(pointers + row_offset(padded_count, NUM_COLUMNS), low)
    if TRANSPOSED:
        pointers = row_pointer(transposed_parts, batch * 2 * NUM_COLUMNS + x, padded_count)[None, :] + t[:, None]
        tl.store(pointers, high)
        tl.store(pointers + row_offset(padded_count, NUM_COLUMNS), low)
