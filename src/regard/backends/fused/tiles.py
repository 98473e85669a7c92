"""What every kernel does alike: find its batch element, measure a tile by differences, apply a band.

An operand is a tuple of its pointer, the strides of its two batch axes, 0 where it is shared, and those of tokens and
of dimensions. Where a kernel reads columns, (dimensions, tokens) for each batch element in float32, a run of tokens is
a run of memory, and the number of columns is padded to a multiple of every tile.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

# Arguments that change from call to call: a kernel is compiled once for all of their values.
COUNTS = ("inner", "queries", "keys", "count", "key_blocks", "far_blocks", "blocks", "chunks")


@triton.jit
def start(operand, batch, inner):
    """The pointer to an operand's part for one batch element."""
    outer = (batch // inner).to(tl.int64)
    return operand[0] + outer * operand[1] + (batch % inner).to(tl.int64) * operand[2]


@triton.jit
def row_of(pointer, row, columns):
    """The pointer to one dimension of all tokens."""
    return pointer + tl.cast(row, tl.int64) * columns


@triton.jit
def differences(query, key, m, n, query_step, key_step, queries, keys, DIM: tl.constexpr, BM: tl.constexpr,
                BN: tl.constexpr):  # fmt: skip
    """Squared distances (BM, BN), dimension by dimension: exact at any offset, and the same number in every kernel.

    query, key: pointers to the tokens m and n; a step leads from one dimension to the next.
    """
    squared = tl.zeros([BM, BN], tl.float32)
    for d in range(DIM):
        q = tl.load(row_of(query, d, query_step), mask=m < queries, other=0.0).to(tl.float32)
        k = tl.load(row_of(key, d, key_step), mask=n < keys, other=0.0).to(tl.float32)
        difference = q[:, None] - k[None, :]
        squared = tl.fma(difference, difference, squared)
    return squared


@triton.jit
def twice_dot(left, right):
    """2 left @ right, to be added to a long sum.

    The factor keeps the compiler from adding inside the matrix units, which cut off what an addition cannot hold: over
    thousands of keys a sum would drift by 1e-5.
    """
    return 2.0 * tl.dot(left, right, input_precision="tf32x3")


@triton.jit
def allows(offset, band):
    """Whether an offset key - query lies in the band and not in its gap."""
    inside = (offset >= band[0]) & (offset <= band[1])
    return inside & ((offset < band[2]) | (offset > band[3]))


@triton.jit
def crosses(least, most, band):
    """Whether some offset between the two may be forbidden."""
    return (least < band[0]) | (most > band[1]) | ((least <= band[3]) & (most >= band[2]))


@triton.jit
def keys_of(first, last, keys, band, BN: tl.constexpr, HAS_BAND: tl.constexpr):
    """The range of keys, from a multiple of BN, that queries first to last may see."""
    begin = 0
    end = keys
    if HAS_BAND:
        begin = tl.maximum(first + band[0], 0) // BN * BN
        end = tl.minimum(last + band[1] + 1, keys)
    return begin, end


@triton.jit
def queries_of(first, last, queries, band, BM: tl.constexpr, HAS_BAND: tl.constexpr):
    """The range of queries, from a multiple of BM, that may see keys first to last."""
    begin = 0
    end = queries
    if HAS_BAND:
        begin = tl.maximum(first - band[1], 0) // BM * BM
        end = tl.minimum(last - band[0] + 1, queries)
    return begin, end
