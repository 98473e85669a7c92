"""What the backward kernels for many dimensions or values multiply: tokens in `parts`, centred, and who is too far.

One kernel each for keys, queries, values and the gradients of the output: every operation more would be a launch, for
which a GPU waits at a few thousand tokens.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, factor_of, scales
from regard.backends.fused.parts import load_tokens, store_parts
from regard.backends.fused.product import LARGEST_REACH
from regard.backends.fused.tiles import COUNTS, row_of, start

# So many blocks are looked through at once.
RUN = tl.constexpr(256)


@triton.jit(do_not_specialize=COUNTS)
def split_keys(
    key, rows, across, squares, frame, inner, count, columns, blocks,
    DIM: tl.constexpr, DIMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN keys less the mean of some of them: parts, squares (columns,), and the frame.

    Keys that are not finite are 0 here, and their squares infinite, as beyond the last key. frame: the centre (DIMS,),
    then the largest square of each block (blocks,), infinite if a key of it is not finite.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    tokens = start(key, batch, inner), key[3], key[4]
    some = (tl.arange(0, 64).to(tl.int64) * count) // 64
    middle = tl.sum(load_tokens(tokens, some, d, count, DIM), 0) / 64.0
    tile = tl.where(
        (n < count)[:, None] & (d < DIM)[None, :], load_tokens(tokens, n, d, count, DIM) - middle[None, :], 0.0
    )
    square = tl.sum(tile * tile, 1)
    is_finite = square < INFINITY
    frame += batch * (DIMS + blocks)
    # A maximum may pass over NaN, an infinity it keeps.
    tl.store(frame + DIMS + block, tl.max(tl.where(is_finite, square, INFINITY), 0))
    if block == 0:
        tl.store(frame + d, middle)
    tl.store(squares + batch * columns + n, tl.where(is_finite & (n < count), square, INFINITY))
    tile = tl.where(is_finite[:, None], tile, 0.0)
    store_parts(tile, rows, across, batch, n, d, columns, DIMS, ACROSS=True)


@triton.jit(do_not_specialize=COUNTS)
def split_queries(
    query, width, frame, rows, across, squares, far, inner, count, columns, blocks, key_blocks,
    DIM: tl.constexpr, DIMS: tl.constexpr, LINK: tl.constexpr, PER_QUERY: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN queries less the centre of the keys: parts and squares (columns,); far: whether some are, (blocks,).

    Queries for which products lose too much are 0 here, and their squares infinite, as beyond the last query.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    d = tl.arange(0, DIMS)
    frame, exists = start(frame, batch, inner), m < count
    tile = load_tokens((start(query, batch, inner), query[3], query[4]), m, d, count, DIM) - tl.load(frame + d)[None, :]
    tile = tl.where(exists[:, None] & (d < DIM)[None, :], tile, 0.0)
    square = tl.sum(tile * tile, 1)
    farthest = tl.zeros([RUN], tl.float32)
    for first in range(0, key_blocks, RUN):
        some = first + tl.arange(0, RUN)
        farthest = tl.maximum(farthest, tl.load(frame + DIMS + some, mask=some < key_blocks, other=0.0))
    scale = scales(start(width, batch, inner), m, count, LINK, PER_QUERY, BN)
    is_near = factor_of(scale, LINK) * (square + tl.max(farthest, 0)) <= LARGEST_REACH
    tl.store(far + batch * blocks + block, tl.max((exists & ~is_near).to(tl.int32), 0))
    tl.store(squares + batch * columns + m, tl.where(exists & is_near, square, INFINITY))
    tile = tl.where(is_near[:, None], tile, 0.0)
    store_parts(tile, rows, across, batch, m, d, columns, DIMS, ACROSS=True)


@triton.jit(do_not_specialize=COUNTS)
def split_values(
    value, rows, inner, count, columns, blocks,
    DIM: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN values, BM numbers of them at a time."""
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BN + tl.arange(0, BN)
    tokens = start(value, batch, inner), value[3], value[4]
    for first in tl.static_range(0, WIDTH, BM):
        v = first + tl.arange(0, BM)
        tile = load_tokens(tokens, n, v, count, DIM)
        store_parts(tile, rows, rows, batch, n, v, columns, WIDTH, ACROSS=False)


@triton.jit(do_not_specialize=COUNTS)
def split_cotangents(
    grad_output, output, grad_log_mass, statistics, rows, across, own, inner, count, columns, blocks,
    DIM: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradients of BN outputs, BM numbers at a time, and what rows have of their own, (3, columns).

    own: peak, inverse mass, and dO'o - dlog_mass, from which the gradient of a row's scores is measured.
    """
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    m = block * BN + tl.arange(0, BN)
    exists = m < count
    tokens = start(grad_output, batch, inner), grad_output[3], grad_output[4]
    outputs = start(output, batch, inner), output[3], output[4]
    mean = tl.zeros([BN], tl.float32)
    for first in tl.static_range(0, WIDTH, BM):
        v = first + tl.arange(0, BM)
        tile = load_tokens(tokens, m, v, count, DIM)
        mean += tl.sum(tile * load_tokens(outputs, m, v, count, DIM), 1)
        store_parts(tile, rows, across, batch, m, v, columns, WIDTH, ACROSS=True)
    place = start(grad_log_mass, batch, inner) + m.to(tl.int64) * grad_log_mass[3]
    mean -= tl.load(place, mask=exists, other=0.0)
    own += batch * 3 * columns
    statistics += (batch * count + m) * 3
    tl.store(own + m, tl.load(statistics, mask=exists, other=0.0))
    tl.store(row_of(own, 1, columns) + m, tl.load(statistics + 1, mask=exists, other=0.0))
    tl.store(row_of(own, 2, columns) + m, mean)
