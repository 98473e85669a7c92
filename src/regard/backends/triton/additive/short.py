"""Additive attention with few keys in one launch: scores (eq. 12), softmax and output (eq. 1 and 3).

In a short call, starting several kernels on the host takes longer than their work on the GPU. So there is one kernel,
and a program does all the work of some queries of one batch element: it computes the functions of one token for its
queries and for all keys, then the scores, and then the output. What one step writes and the next step reads goes
through memory, which stays in the cache.

The scores are kept for the backward pass, which has the same kernels as that of longer calls.
"""
# ruff: noqa: N803 - Triton's conventions: capital names for constants

import triton
import triton.language as tl
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.triton.additive import FoldedProblem, fold_problem
from regard.backends.triton.additive.exact import (
    ADDITION_RANGE,
    CLAMPED_RANGE,
    any_scores,
    largest_activation,
    padded_count,
    store_function,
    unit_block,
)
from regard.backends.triton.additive.softmax import pair_arguments, pool_block
from regard.backends.triton.launch import (
    INTERPRETED,
    KnownCall,
    Launch,
    Layout,
    Tile,
    cdiv,
    empty_float32,
    launch_or_repeat,
    layout_of,
    padded_size,
    pick_tile,
    token_operand,
)
from regard.backends.triton.primitives import UNSPECIALIZED, batch_pointer, key_range

# Tiles for at most FEW_KEYS keys, and for more keys. No other sizes have been timed.
FEW_KEYS = 32
TILES_OF_FEW_KEYS = (Tile(64, 32, 4), Tile(32, 32, 2), Tile(16, 32, 2))
TILES = (Tile(64, 64, 4), Tile(32, 64, 4), Tile(16, 64, 2))
MAX_VALUE_BLOCK = 64


_known_calls: dict[Layout, KnownCall] = {}


def attend(problem: Problem) -> list[Tensor]:
    """Return output, log_mass and scores of a problem, in the exact form.

    The scores are those without bias and mask, (*batch, padded queries, padded keys); they are undefined outside of the
    band.
    """
    inputs = problem.all_tensors()
    # Masks and dropout have numbers that are arguments of the kernel, too, so such calls are not remembered.
    layout = layout_of(inputs) if problem.mask is None and not problem.dropout else None
    return launch_or_repeat(_known_calls, layout, inputs, lambda: _launch(problem))[:3]


def _launch(problem: Problem) -> Launch:
    """Return the launch for a problem."""
    folded = fold_problem(problem, rank=0)
    queries, keys, units, value, batch = folded.queries, folded.keys, folded.units, folded.value, folded.batch
    tile, value_dim = _tile(folded), value.shape[-1]
    rows, columns = padded_count(queries), padded_count(keys)
    blocks, key_columns = cdiv(queries, tile.queries), cdiv(keys, tile.keys) * tile.keys
    programs, value_block = folded.batch_size * blocks, min(padded_size(value_dim), MAX_VALUE_BLOCK)
    output, log_mass = value.new_empty(*batch, queries, value_dim), empty_float32(value, *batch, queries)
    scores = empty_float32(value, *batch, rows, columns)
    functions = empty_float32(value, programs, units, tile.queries + key_columns)
    settings = pair_arguments(folded, None, folded.key_bias) | {
        "slab_scores": scores, "output": output, "log_mass": log_mass,
        "rows": rows, "columns": columns, "key_columns": key_columns, "blocks": blocks,
        "chunks": cdiv(value_dim, value_block), "BU": unit_block(units), "BV": value_block, "FAST": not INTERPRETED,
    }  # fmt: skip
    operands = token_operand(folded.query), token_operand(folded.key), functions
    return Launch(attend_short, programs, [output, log_mass, scores, functions], operands, tile, settings)


def _tile(folded: FoldedProblem) -> Tile:
    """Return the tile of a problem; a tile has no more queries than the problem, rounded up."""
    tiles = TILES_OF_FEW_KEYS if folded.keys <= FEW_KEYS else TILES
    fitting = [tile for tile in tiles if tile.queries <= padded_size(folded.queries)]
    return pick_tile(fitting, folded.queries, folded.batch_size)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def attend_short(
    query, key, functions, slab_scores, value, weight, key_bias, query_bias, bias, allowed, seed, output, log_mass,
    inner, queries, keys, rows, columns, key_columns, blocks, chunks, dropout, band,
    LIFTED: tl.constexpr, HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    HAS_BAND: tl.constexpr, HAS_DROPOUT: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Write output, log_mass and scores of BM queries.

    functions: memory for functions of one token. Each program has UNITS x BM numbers for its queries, and then
        UNITS x key_columns for the keys.
    slab_scores: (batch, rows, columns).
    blocks, chunks: number of blocks of queries, and of blocks of values.
    BU: hidden units that are read at once.
    The other arguments are those of `softmax.pool_scores`.
    """
    program = tl.program_id(0)
    batch, m0 = program // blocks, program % blocks * BM
    m = m0 + tl.arange(0, BM)
    queries_of_batch, keys_of_batch = batch_pointer(query, batch, inner), batch_pointer(key, batch, inner)
    query_functions = functions + program.to(tl.int64) * UNITS * (BM + key_columns)
    key_functions = query_functions + UNITS * BM + tl.arange(0, BN)
    query_functions += tl.arange(0, BM)

    begin, end = key_range(m0, m0 + BM - 1, keys, band, BN, HAS_BAND)

    # Compute tanh a or e^2a of each token, as the largest activations allow; `any_scores` needs neither beyond that.
    max_a = largest_activation(queries_of_batch, m, queries, query[3], query[4], UNITS, BU)
    max_b = max_a * 0.0
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        largest = largest_activation(keys_of_batch, n, keys, key[3], key[4], UNITS, BU)
        max_b = tl.maximum(max_b, largest, propagate_nan=tl.PropagateNan.ALL)
    if (max_a <= ADDITION_RANGE) & (max_b <= ADDITION_RANGE):
        store_function(queries_of_batch, m, queries, query[3], query[4], query_functions, BM, UNITS, BU, IS_TANH=True)
        for first in range(begin, end, BN):
            n = first + tl.arange(0, BN)
            target = key_functions + first
            store_function(keys_of_batch, n, keys, key[3], key[4], target, key_columns, UNITS, BU, IS_TANH=True)
    elif (max_a <= CLAMPED_RANGE) & (max_b <= CLAMPED_RANGE):
        store_function(queries_of_batch, m, queries, query[3], query[4], query_functions, BM, UNITS, BU, IS_TANH=False)
        for first in range(begin, end, BN):
            n = first + tl.arange(0, BN)
            target = key_functions + first
            store_function(keys_of_batch, n, keys, key[3], key[4], target, key_columns, UNITS, BU, IS_TANH=False)
    tl.debug_barrier()

    weights = batch_pointer(weight, batch, inner)
    scores_of_block = slab_scores + (batch.to(tl.int64) * rows + m0) * columns
    for first in range(begin, end, BN):
        n = first + tl.arange(0, BN)
        scores = any_scores(
            query, key, weights, max_a, max_b, query_functions, key_functions + first, query_functions,
            key_functions + first, BM, key_columns, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST,
        )  # fmt: skip
        tl.store(scores_of_block + tl.arange(0, BM)[:, None] * columns + n[None, :], scores)
    tl.debug_barrier()

    for chunk in range(0, chunks):
        pool_block(
            scores_of_block, value, weight, key_bias, query_bias, bias, allowed, seed, output, log_mass, batch, m0,
            chunk, inner, queries, keys, columns, dropout, band,
            LIFTED, HAS_KEY_BIAS, HAS_BIAS, HAS_MASK, HAS_BAND, HAS_DROPOUT, UNITS, PADDED, VALUE_DIM, BV, BM, BN,
        )  # fmt: skip
