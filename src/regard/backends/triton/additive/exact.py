"""Exact additive scores (eq. 12) and the gradients of their tokens, without a tanh for each pair.

With u = e^2a and v = e^2b, tanh(a + b) = 1 - 2 / (1 + uv); with s = tanh a and t = tanh b it is (s + t) / (1 + st).
u, v, s and t are computed once for each token. A pair then costs a product and a share of a reciprocal, because
n1/d1 + n2/d2 = (n1 d2 + n2 d1) / (d1 d2): four hidden units share one reciprocal in the forward pass, and two in the
backward pass, where four would need too many registers. MODE is the formula of a tile of pairs. It depends on the
largest |a| and |b| in the tile:

    ADDITION  both up to 1: the addition formula, which is as exact as tanh near 0
    PRODUCT   uv is at most 2^30: the product of four factors 1 + uv is finite
    CLAMPED   e^2a and e^2b are finite: 1 + uv is clamped to 2^30, which changes a tanh by 2^-29
    DIRECT    anything else: e^2(a + b) for each pair, clamped likewise; NaN stays NaN

The kernel of the gradients of tokens also serves lifted scores (`lifted`): with PATCH it computes only the tiles that
the lift leaves out.
"""
# ruff: noqa: N803, RUF005, SIM108 - Triton's conventions: capital names for constants, tuples by +, one type in both
# arms of a constant's `if`

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.additive import GROUP, FoldedProblem, Slab
from regard.backends.triton.additive.lift import CELLS
from regard.backends.triton.launch import (
    INTERPRETED,
    Tile,
    batch_operand,
    cdiv,
    empty_float32,
    launch,
    padded_size,
    token_operand,
)
from regard.backends.triton.primitives import LN2, UNSPECIALIZED, batch_pointer, outside_band

# The sizes of tiles were found by timing each kernel alone on one H200.
# Tokens are padded to blocks of this size. The largest |activation| and the outlier flag are kept for each block.
BLOCK = 64
EXPAND_WARPS = 4
# At most BLOCK queries and keys.
SCORE_TILE = Tile(BLOCK, BLOCK, 4)
GRADIENT_TILE = Tile(64, 32, 4, 1)
# Hidden units whose gradients a program keeps in registers.
GRADIENT_UNITS = 8

ADDITION, PRODUCT, CLAMPED, DIRECT = (tl.constexpr(mode) for mode in range(4))
ADDITION_RANGE = tl.constexpr(1.0)  # of |a| and of |b|
PRODUCT_RANGE = tl.constexpr(10.39)  # of |a| + |b|: 2 (a + b) log2(e) <= 30
CLAMPED_RANGE = tl.constexpr(43.0)  # of |a| and of |b|
MAX_DENOMINATOR = tl.constexpr(2.0**30)
TWICE_LOG2E = tl.constexpr(2.8853900817779268)
TWICE_LOG2E_HIGH, TWICE_LOG2E_LOW = tl.constexpr(2.885390043258667), tl.constexpr(3.85192597818218e-08)


def padded_count(count: int) -> int:
    """Return a number of tokens rounded up to whole blocks."""
    return cdiv(count, BLOCK) * BLOCK


# --- Functions of one token ------------------------------------------------------------------------------------


class Expanded(NamedTuple):
    """Tokens and the functions of one token that exact scores use.

    Attributes:
        tokens: (outer or 1, inner or 1, tokens, units).
        functions: e^2a of all units, then tanh a of all units for blocks where every |a| <= 1,
            (outer or 1, inner or 1, 2 * units, padded tokens).
        max_abs: the largest |a| of each block, (outer or 1, inner or 1, blocks).
    """

    tokens: Tensor
    functions: Tensor
    max_abs: Tensor

    @property
    def columns(self) -> int:
        """Number of tokens with padding."""
        return self.functions.shape[-1]


def expand(query: Tensor, key: Tensor) -> tuple[Expanded, Expanded]:
    """Return the functions of one token of queries and keys.

    Args:
        query: (outer or 1, inner or 1, queries, units).
        key: (outer or 1, inner or 1, keys, units).
    """
    sides = _empty_expanded(query), _empty_expanded(key)
    programs = [side.max_abs.numel() for side in sides]
    units = query.shape[-1]
    launch(
        expand_tokens, sum(programs), *(token_operand(side.tokens) for side in sides),
        *(side.functions for side in sides), *(side.max_abs for side in sides), query_inner=query.shape[1],
        key_inner=key.shape[1], queries=query.shape[2], keys=key.shape[2], query_columns=sides[0].columns,
        key_columns=sides[1].columns, query_programs=programs[0],
        UNITS=units, BT=BLOCK, BU=unit_block(units), num_warps=EXPAND_WARPS,
    )  # fmt: skip
    return sides


def _empty_expanded(tokens: Tensor) -> Expanded:
    """Return the memory for the functions of tokens (outer or 1, inner or 1, tokens, units)."""
    outer, inner, count, units = tokens.shape
    columns = padded_count(count)
    functions = empty_float32(tokens, outer, inner, 2 * units, columns)
    return Expanded(tokens, functions, empty_float32(tokens, outer, inner, columns // BLOCK))


def unit_block(units: int) -> int:
    """Return how many hidden units a program reads at once to compute functions of one token."""
    return min(padded_size(units), 32)


@triton.jit
def exponential(a):
    """Return e^2a with an error of a few units in the last place, by correcting the rounding of 2 a log2(e)."""
    power = a * TWICE_LOG2E_HIGH
    error = tl.fma(a, TWICE_LOG2E_HIGH, -power) + a * TWICE_LOG2E_LOW
    return tl.exp2(power) * (1.0 + error * LN2)


@triton.jit
def tanh_near_0(a):
    """Return tanh a for |a| <= 1 by Lambert's continued fraction, with a small relative error."""
    z = a * a
    return a / (1.0 + z / (3.0 + z / (5.0 + z / (7.0 + z / (9.0 + z / (11.0 + z / 13.0))))))


@triton.jit
def load_activations(source, t, u, count, token_step, unit_step, UNITS: tl.constexpr):
    """Return the activations (tokens, units) of the tokens t and units u, 0 beyond the last; source: a pointer."""
    pointers = source + t.to(tl.int64)[:, None] * token_step + u[None, :] * unit_step
    return tl.load(pointers, mask=(t < count)[:, None] & (u < UNITS)[None, :], other=0.0).to(tl.float32)


@triton.jit
def largest_activation(source, t, count, token_step, unit_step, UNITS: tl.constexpr, BU: tl.constexpr):
    """Return the largest |a| of the tokens t, or NaN if an activation is not finite."""
    largest, nan_or_0 = 0.0, 0.0
    for unit in range(0, UNITS, BU):
        a = load_activations(source, t, unit + tl.arange(0, BU), count, token_step, unit_step, UNITS)
        largest = tl.maximum(largest, tl.max(tl.max(tl.abs(a), 1), 0))
        # NaN if an activation is not finite, because a maximum may ignore NaN.
        nan_or_0 += tl.sum(tl.sum(a * 0.0, 1), 0)
    return largest + nan_or_0


@triton.jit
def store_function(
    source, t, count, token_step, unit_step, target, columns,
    UNITS: tl.constexpr, BU: tl.constexpr, IS_TANH: tl.constexpr,
):  # fmt: skip
    """Write tanh a or e^2a of the tokens t to target, a pointer (tokens,) to the first unit; padded tokens have a = 0.

    columns: step from one unit to the next in target, so that a run of tokens is a run of memory.
    """
    for unit in range(0, UNITS, BU):
        u = unit + tl.arange(0, BU)
        a = load_activations(source, t, u, count, token_step, unit_step, UNITS)
        function = tanh_near_0(a) if IS_TANH else exponential(a)
        tl.store(target[:, None] + u[None, :].to(tl.int64) * columns, function, mask=(u < UNITS)[None, :])


@triton.jit
def expand_block(
    program, tokens, inner, functions, max_abs, count, columns,
    UNITS: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Write everything in `Expanded` of one block of tokens."""
    blocks = columns // BT
    batch, t = program // blocks, program % blocks * BT + tl.arange(0, BT)
    source = batch_pointer(tokens, batch, inner)
    target = functions + batch.to(tl.int64) * (2 * UNITS) * columns + t
    largest = largest_activation(source, t, count, tokens[3], tokens[4], UNITS, BU)
    tl.store(max_abs + program, largest)
    store_function(source, t, count, tokens[3], tokens[4], target, columns, UNITS, BU, IS_TANH=False)
    if largest <= ADDITION_RANGE:
        target += UNITS * columns
        store_function(source, t, count, tokens[3], tokens[4], target, columns, UNITS, BU, IS_TANH=True)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def expand_tokens(
    query, key, query_functions, key_functions, query_max_abs, key_max_abs,
    query_inner, key_inner, queries, keys, query_columns, key_columns, query_programs,
    UNITS: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Write everything in `Expanded` of one block of queries or keys.

    query, key: operands with the strides of tokens and units; query_inner and key_inner: sizes of their second axes.
    query_programs: number of programs for queries; the others are for keys.
    """
    program = tl.program_id(0)
    if program < query_programs:
        expand_block(program, query, query_inner, query_functions, query_max_abs, queries, query_columns, UNITS, BT, BU)
    else:
        program -= query_programs
        expand_block(program, key, key_inner, key_functions, key_max_abs, keys, key_columns, UNITS, BT, BU)


# --- A tile of pairs -------------------------------------------------------------------------------------------


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """Return 1 / x with an error of a bit or two; FAST uses an instruction that Triton's interpreter does not have."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / x
    return result


@triton.jit
def mma_zeros(BM: tl.constexpr, BN: tl.constexpr):
    """Return zeros (BM, BN) in the layout of the matrix units, as a product of zero matrices.

    In this layout a thread has 2 rows and 16 columns of a tile of 64 x 64 pairs. For a hidden unit it reads 18 numbers
    by 10 loads, because the columns are pairs of neighbours. In the default layout it would have 32 rows and 1 column,
    and read 33 numbers.
    """
    return tl.dot(tl.zeros([BM, 16], tl.float16), tl.zeros([16, BN], tl.float16))


@triton.jit
def denominator(a, b, MODE: tl.constexpr):
    """Return 1 + uv, or 1 + st for ADDITION, (BM, BN), of one hidden unit.

    a, b: (BM,) and (BN,); activations for DIRECT, tanh for ADDITION, otherwise u and v.
    """
    if MODE == DIRECT:
        d = tl.minimum(
            tl.exp2((a[:, None] + b[None, :]) * TWICE_LOG2E) + 1.0, MAX_DENOMINATOR, propagate_nan=tl.PropagateNan.ALL
        )
    elif MODE == CLAMPED:
        d = tl.minimum(a[:, None] * b[None, :] + 1.0, MAX_DENOMINATOR)
    else:
        d = a[:, None] * b[None, :] + 1.0
    return d


@triton.jit
def numerator(a, b, weight, MODE: tl.constexpr):
    """Return the numerator over `denominator`: w (s + t) for ADDITION, otherwise -2 w."""
    if MODE == ADDITION:
        n = (weight * a)[:, None] + weight * b[None, :]
    else:
        n = -2.0 * weight
    return n


@triton.jit
def add_fractions(a0, b0, w0, a1, b1, w1, MODE: tl.constexpr):
    """Return the numerator and the denominator of the sum over two hidden units."""
    d0, d1 = denominator(a0, b0, MODE), denominator(a1, b1, MODE)
    return numerator(a0, b0, w0, MODE) * d1 + numerator(a1, b1, w1, MODE) * d0, d0 * d1


@triton.jit
def tile_scores(query, key, weight, query_step, key_step, UNITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                MODE: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Return w' tanh(a + b) for a tile (BM, BN).

    query, key: pointers (BM,) and (BN,) to the first hidden unit of what MODE uses: a, e^2a or tanh a; a step leads to
    the next unit. UNITS is a multiple of 4.
    """
    total = mma_zeros(BM, BN)
    for unit in range(0, UNITS, 4):
        a, b, w = query + unit * query_step, key + unit * key_step, weight + unit
        w0, w1, w2, w3 = tl.load(w), tl.load(w + 1), tl.load(w + 2), tl.load(w + 3)
        a0, a1 = tl.load(a).to(tl.float32), tl.load(a + query_step).to(tl.float32)
        b0, b1 = tl.load(b).to(tl.float32), tl.load(b + key_step).to(tl.float32)
        n01, d01 = add_fractions(a0, b0, w0, a1, b1, w1, MODE)
        a2, a3 = tl.load(a + 2 * query_step).to(tl.float32), tl.load(a + 3 * query_step).to(tl.float32)
        b2, b3 = tl.load(b + 2 * key_step).to(tl.float32), tl.load(b + 3 * key_step).to(tl.float32)
        n23, d23 = add_fractions(a2, b2, w2, a3, b3, w3, MODE)
        fraction = (n01 * d23 + n23 * d01) * reciprocal(d01 * d23, FAST)
        if MODE == ADDITION:
            total += fraction
        else:
            # Add w of these units at once, so that the running sum stays near the score.
            total += fraction + ((w0 + w1) + (w2 + w3))
    return total


# --- Scores ----------------------------------------------------------------------------------------------------


class ExactScores:
    """Exact scores; see `additive.Scores`."""

    def __init__(self, folded: FoldedProblem) -> None:
        """Expand the tokens of a problem."""
        self.folded = folded
        self.query, self.key = expand(folded.query, folded.key)
        self.query_bias: Tensor | None = None
        self.key_bias = folded.key_bias

    def of_slab(self, slab: Slab) -> Tensor:
        """Return the scores of a slab, (num_batch, rows, columns); a tile outside the band is not computed."""
        folded, query, key = self.folded, self.query, self.key
        columns = key.columns
        scores = empty_float32(key.functions, slab.num_batch, slab.rows, columns)
        row_blocks, key_blocks = slab.rows // SCORE_TILE.queries, columns // SCORE_TILE.keys
        launch(
            score_tiles, slab.num_batch * row_blocks * key_blocks,
            token_operand(query.tokens), token_operand(key.tokens), batch_operand(query.functions),
            batch_operand(key.functions), batch_operand(query.max_abs), batch_operand(key.max_abs),
            batch_operand(folded.weight), scores,
            first_batch=slab.first_batch, first_row=slab.first_row, inner=folded.inner, queries=folded.queries,
            keys=folded.keys, row_blocks=row_blocks, key_blocks=key_blocks, query_columns=query.columns,
            key_columns=columns, band=folded.band, UNITS=folded.units, BLOCK=BLOCK, FAST=not INTERPRETED,
            tile=SCORE_TILE,
        )  # fmt: skip
        return scores

    def gradients(self, grad_scale: Tensor, d_log_mass: Tensor, needs: Sequence[bool]) -> "ExactGradients":
        """Return the gradients of query, key and weight, to which no slab has been added."""
        del d_log_mass
        return ExactGradients(self, grad_scale, needs)


@triton.jit
def tile_position(first_batch, row_blocks, key_blocks):
    """Return the tile of this program: its batch element in the slab and in the batch, block of rows, block of keys."""
    program = tl.program_id(0)
    element = program // (row_blocks * key_blocks)
    rest = program % (row_blocks * key_blocks)
    return element, first_batch + element, rest // key_blocks, rest % key_blocks


@triton.jit
def direct_scores(query, key, weight, batch, inner, m, n, queries, keys, UNITS: tl.constexpr, BM: tl.constexpr,
                  BN: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """Return the scores of any activations, from the tokens themselves; positions beyond the last repeat the last."""
    a = batch_pointer(query, batch, inner) + tl.minimum(m, queries - 1).to(tl.int64) * query[3]
    b = batch_pointer(key, batch, inner) + tl.minimum(n, keys - 1).to(tl.int64) * key[3]
    return tile_scores(a, b, weight, query[4], key[4], UNITS, BM, BN, DIRECT, FAST)


@triton.jit
def any_scores(
    query, key, weight, max_a, max_b, query_tanhs, key_tanhs, query_exps, key_exps, query_step, key_step, batch, inner,
    m, n, queries, keys, UNITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return the scores of a tile (BM, BN), by the mode that its largest activations allow.

    query, key: operands with the strides of tokens and units.
    weight: a pointer to the weights.
    max_a, max_b: the largest |a| and |b| among the queries and keys of the tile.
    query_tanhs to key_exps: pointers (BM,) or (BN,) to the functions of the first unit; a step leads to the next unit.
    """
    if (max_a <= ADDITION_RANGE) & (max_b <= ADDITION_RANGE):
        scores = tile_scores(query_tanhs, key_tanhs, weight, query_step, key_step, UNITS, BM, BN, ADDITION, FAST)
    elif max_a + max_b <= PRODUCT_RANGE:
        scores = tile_scores(query_exps, key_exps, weight, query_step, key_step, UNITS, BM, BN, PRODUCT, FAST)
    elif (max_a <= CLAMPED_RANGE) & (max_b <= CLAMPED_RANGE):
        scores = tile_scores(query_exps, key_exps, weight, query_step, key_step, UNITS, BM, BN, CLAMPED, FAST)
    else:
        scores = direct_scores(query, key, weight, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST)
    return scores


@triton.jit(do_not_specialize=UNSPECIALIZED)
def score_tiles(
    query, key, query_functions, key_functions, query_max_abs, key_max_abs, weight, slab_scores,
    first_batch, first_row, inner, queries, keys, row_blocks, key_blocks, query_columns, key_columns, band,
    UNITS: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a tile of slab_scores (num_batch, rows, key_columns).

    query, key: operands with the strides of tokens and units.
    query_functions to key_max_abs: those of `Expanded`.
    """
    element, batch, row_block, block = tile_position(first_batch, row_blocks, key_blocks)
    row, n0 = first_row + row_block * BM, block * BN
    if not outside_band(n0 - (row + BM - 1), n0 + BN - 1 - row, band):
        m, n = row + tl.arange(0, BM), n0 + tl.arange(0, BN)
        weights = batch_pointer(weight, batch, inner)
        max_a = tl.load(batch_pointer(query_max_abs, batch, inner) + row // BLOCK)
        max_b = tl.load(batch_pointer(key_max_abs, batch, inner) + n0 // BLOCK)
        a = batch_pointer(query_functions, batch, inner) + m
        b = batch_pointer(key_functions, batch, inner) + n
        scores = any_scores(
            query, key, weights, max_a, max_b, a + UNITS * query_columns, b + UNITS * key_columns, a, b, query_columns,
            key_columns, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST,
        )  # fmt: skip
        slab_rows = (element.to(tl.int64) * row_blocks + row_block) * BM + tl.arange(0, BM)
        tl.store(slab_scores + slab_rows[:, None] * key_columns + n[None, :], scores)


# --- Tables of the lift: one entry for each cell, see `lift.Tables` ---------------------------------------------


@triton.jit
def in_range(a, RANGE: tl.constexpr):
    """Return whether an activation is in the range; NaN is not."""
    return tl.abs(a) <= RANGE


@triton.jit
def clamp(a, RANGE: tl.constexpr):
    """Return the activation of the range that is nearest to a; for NaN its lower end."""
    return tl.where(in_range(a, RANGE), a, tl.where(a > 0, RANGE, -RANGE))


@triton.jit
def find_cell(a, RANGE: tl.constexpr, CELLS: tl.constexpr):
    """Return the cell of a table that contains a, and the position of a in the cell, from 0 to 1; |a| <= RANGE."""
    position = (a + RANGE) * (CELLS / (2 * RANGE))
    cell = tl.minimum(position.to(tl.int32), CELLS - 1)
    return cell, position - cell.to(tl.float32)


@triton.jit
def lerp(table, cell, fraction, STEP: tl.constexpr):
    """Return linear interpolations in a table; a step leads to the next cell."""
    low = tl.load(table + cell)
    return low + fraction * (tl.load(table + cell + STEP) - low)


# --- Gradients of tokens ---------------------------------------------------------------------------------------


class SideGradients(NamedTuple):
    """The gradients of one side, in float32.

    Attributes:
        tokens: of the tokens, (batch, tokens, units).
        weight: what each token adds to the gradient of the weight, (batch, tokens, units).
    """

    tokens: Tensor
    weight: Tensor


class ExactGradients:
    """The gradients of query, key and weight; see `additive.TokenGradients`.

    The gradient of the weight is computed with those of the queries.
    """

    def __init__(self, scores: ExactScores, grad_scale: Tensor, needs: Sequence[bool]) -> None:
        """Allocate the gradients that are needed, without values."""
        folded, (query, key, weight) = scores.folded, needs
        self._scores, self._grad_scale, self._needs = scores, grad_scale, needs
        self._query: SideGradients | None = None
        self._key: SideGradients | None = None
        if query or weight:
            shape = folded.batch_size, folded.queries, folded.units
            self._query = SideGradients(*(empty_float32(folded.query, *shape) for _ in range(2)))
        if key:
            d_key = empty_float32(folded.key, folded.batch_size, folded.keys, folded.units)
            self._key = SideGradients(d_key, weight=d_key.new_empty(0))  # the kernel does not write to it

    def add(self, slab: Slab, d_scores: Tensor, sums: Tensor) -> None:
        """Add one slab."""
        del sums
        query, key = self._scores.query, self._scores.key
        if self._query is not None:
            self._add_side(slab, d_scores, query, key, self._query, is_query=True)
        if self._key is not None:
            self._add_side(slab, d_scores, key, query, self._key, is_query=False)

    def results(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients (batch, queries, units), (batch, keys, units) and (batch, 1, units)."""
        query, key = self._query, self._key
        d_weight = query.weight.sum(-2, keepdim=True) if query is not None and self._needs[2] else None
        return None if query is None else query.tokens, None if key is None else key.tokens, d_weight

    def _add_side(
        self, slab: Slab, d_scores: Tensor, own: Expanded, other: Expanded, d_own: SideGradients, *, is_query: bool
    ) -> None:
        """Write the gradients of the slab's queries; write or add those of its keys, which other slabs have, too."""
        launch_token_gradients(
            self._scores.folded, slab, own.tokens, other.tokens,
            TokenOperands(
                own_functions=own.functions, other_functions=other.functions,
                own_max_abs=own.max_abs, other_max_abs=other.max_abs,
                own_flags=own.max_abs, other_flags=other.max_abs,  # not read without PATCH
            ),
            d_scores, self._grad_scale, d_own, is_query=is_query, own_term_table=self._grad_scale,
            own_slope_table=self._grad_scale, own_columns=own.columns, other_columns=other.columns,
            RANGE=1.0, PATCH=False, ADD=not is_query and slab.first_row > 0,
        )  # fmt: skip


class TokenOperands(NamedTuple):
    """The operands of `token_gradients` for which `Expanded` or `lifted.Lifted` have tensors.

    With PATCH the kernel reads only the flags of these, and without PATCH all but the flags. Any tensor may take the
    place of those that it does not read.
    """

    own_functions: Tensor
    other_functions: Tensor
    own_max_abs: Tensor
    other_max_abs: Tensor
    own_flags: Tensor
    other_flags: Tensor


def launch_token_gradients(
    folded: FoldedProblem,
    slab: Slab,
    own: Tensor,
    other: Tensor,
    operands: TokenOperands,
    d_scores: Tensor,
    grad_scale: Tensor,
    d_own: SideGradients,
    *,
    is_query: bool,
    **settings: Any,
) -> None:
    """Launch `token_gradients` for one side of a slab.

    Args:
        folded: the problem.
        slab: the slab.
        own: the tokens whose gradients are computed, (outer or 1, inner or 1, tokens, units).
        other: the tokens of the other side.
        operands: the operands that depend on the form of the scores.
        d_scores: (num_batch, rows, columns).
        grad_scale: the factor of d_scores.
        d_own: where the gradients go.
        is_query: whether the own tokens are the queries.
        **settings: the other arguments of the kernel.
    """
    _, rows, columns = d_scores.shape
    side, (low, high, *_) = slab.side(columns, is_query=is_query), folded.band
    chunk = GRADIENT_UNITS if folded.units % GRADIENT_UNITS == 0 else GROUP
    own_blocks, chunks = side.own_extent // GRADIENT_TILE.queries, folded.units // chunk
    launch(
        token_gradients, slab.num_batch * own_blocks * chunks,
        token_operand(own), token_operand(other), *(batch_operand(x) for x in operands),
        weight=batch_operand(folded.weight), d_scores=d_scores, grad_scale=grad_scale, d_tokens=d_own.tokens,
        d_weight=d_own.weight, first_batch=slab.first_batch, inner=folded.inner, own_count=own.shape[-2],
        other_count=other.shape[-2], own_blocks=own_blocks, chunks=chunks, element_step=rows * columns,
        **side._asdict(), band=(low, high) if is_query else (-high, -low),
        CELLS=CELLS, UNITS=folded.units, CHUNK=chunk, WITH_D_WEIGHT=is_query, FAST=not INTERPRETED, BLOCK=BLOCK,
        tile=GRADIENT_TILE, **settings,
    )  # fmt: skip


@triton.jit
def two_reciprocals(d0, d1, FAST: tl.constexpr):
    """Return 1 / d0 and 1 / d1, by one reciprocal."""
    r = reciprocal(d0 * d1, FAST)
    return r * d1, r * d0


@triton.jit
def slope(r, b, MODE: tl.constexpr):
    """Return 1 - tanh^2 without the factor `slope_factor` of the own token, from r = 1 / denominator."""
    if MODE == ADDITION:
        result = r * r * (1.0 - b * b)[None, :]
    else:
        result = r - r * r
    return result


@triton.jit
def slope_factor(a, MODE: tl.constexpr):
    """Return the factor of `slope` that belongs to the own token: 1 - tanh^2 a for ADDITION, otherwise 4."""
    if MODE == ADDITION:
        result = 1.0 - a * a
    else:
        result = tl.zeros_like(a) + 4.0
    return result


@triton.jit
def partial_sums(tile, BM: tl.constexpr, BN: tl.constexpr):
    """Return sums (BM, 4) over the other tokens of a tile; each sum is over the columns of one thread.

    In the layout of the matrix units a thread has the columns 8 j + 2 q and 8 j + 2 q + 1 for one q. The threads
    exchange nothing before the last sum, over these 4 columns.
    """
    return tl.sum(tl.sum(tl.reshape(tile, [BM, BN // 8, 4, 2]), 1), 2)


@triton.jit
def partial_tanh_sums(d_score, total, r, a, b, MODE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Return sums of d_score * tanh(a + b) from r = 1 / denominator; total: the sums of d_score."""
    if MODE == ADDITION:
        result = partial_sums(d_score * ((a[:, None] + b[None, :]) * r), BM, BN)
    else:
        result = total - 2.0 * partial_sums(d_score * r, BM, BN)
    return result


@triton.jit
def add_tile_gradients(
    sums, weight_sums, d_score, own, other, own_step, other_step,
    CHUNK: tl.constexpr, MODE: tl.constexpr, WITH_D_WEIGHT: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Return the sums of CHUNK hidden units, tuples of (BM, 4), after adding a tile."""
    new_sums, new_weight_sums = (), ()
    total = partial_sums(d_score, BM, BN)
    for pair in tl.static_range(CHUNK // 2):
        a, b = own + 2 * pair * own_step, other + 2 * pair * other_step
        a0, a1 = tl.load(a).to(tl.float32), tl.load(a + own_step).to(tl.float32)
        b0, b1 = tl.load(b).to(tl.float32), tl.load(b + other_step).to(tl.float32)
        r0, r1 = two_reciprocals(denominator(a0, b0, MODE), denominator(a1, b1, MODE), FAST)
        s0 = partial_sums(d_score * slope(r0, b0, MODE), BM, BN) * slope_factor(a0, MODE)[:, None]
        s1 = partial_sums(d_score * slope(r1, b1, MODE), BM, BN) * slope_factor(a1, MODE)[:, None]
        new_sums = new_sums + (sums[2 * pair] + s0, sums[2 * pair + 1] + s1)
        if WITH_D_WEIGHT:
            t0 = partial_tanh_sums(d_score, total, r0, a0, b0, MODE, BM, BN)
            t1 = partial_tanh_sums(d_score, total, r1, a1, b1, MODE, BM, BN)
            new_weight_sums = new_weight_sums + (weight_sums[2 * pair] + t0, weight_sums[2 * pair + 1] + t1)
    return new_sums, new_weight_sums


@triton.jit(do_not_specialize=UNSPECIALIZED)
def token_gradients(
    own, other, own_functions, other_functions, own_max_abs, other_max_abs, own_flags, other_flags,
    own_term_table, own_slope_table, weight, d_scores, grad_scale, d_tokens, d_weight,
    first_batch, first_own, first_other, inner, own_count, other_count, own_extent, other_extent, own_blocks, chunks,
    own_columns, other_columns, element_step, own_step, other_step, band,
    RANGE: tl.constexpr, CELLS: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, WITH_D_WEIGHT: tl.constexpr,
    PATCH: tl.constexpr, ADD: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of BM own tokens and, if WITH_D_WEIGHT, of the weight, in CHUNK hidden units.

    da_h = w_h sum_j dS_ij (1 - tanh^2(a_ih + b_jh)) and dw_h = sum_ij dS_ij tanh(a_ih + b_jh). The same kernel serves
    both sides: the own tokens are those whose gradients it computes, and it sums over the other ones.

    own_functions to other_flags: see `TokenOperands`.
    own_term_table, own_slope_table: tables of the lift, for PATCH.
    d_scores: those of the slab, times grad_scale; element_step, own_step and other_step lead to the next batch element
        of the slab, own token and other token.
    d_tokens, d_weight: (batch, own_count, UNITS).
    band: of the offset other - own position.
    PATCH: the scores are lifted. Sum over the tiles of flagged blocks only, and subtract what the lift has added for
        them, which is the part of the own term and of the own slope.
    ADD: add to what d_tokens and d_weight hold.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    element, block = program // own_blocks, program % own_blocks
    batch = first_batch + element
    m0 = first_own + block * BM
    m = m0 + tl.arange(0, BM)
    unit = (chunk * CHUNK).to(tl.int64)
    # Create the sums in the layout of the tiles, which avoids conversions.
    d_sum = partial_sums(mma_zeros(BM, BN), BM, BN)
    sums, weight_sums = (), ()
    for _ in tl.static_range(CHUNK):
        sums = sums + (d_sum,)
        if WITH_D_WEIGHT:
            weight_sums = weight_sums + (d_sum,)
    d_score_rows = d_scores + element.to(tl.int64) * element_step + (m - first_own).to(tl.int64) * own_step
    own_tokens = batch_pointer(own, batch, inner) + tl.minimum(m, own_count - 1).to(tl.int64) * own[3] + unit * own[4]
    own_flag = 0
    max_a = 0.0
    flags = batch_pointer(other_flags, batch, inner) + first_other // BLOCK
    if PATCH:
        own_flag = tl.load(batch_pointer(own_flags, batch, inner) + m0 // BLOCK)
        if own_flag + any_flag(flags, tl.cdiv(other_extent, BLOCK), 128) == 0:
            return
    else:
        max_a = tl.load(batch_pointer(own_max_abs, batch, inner) + m0 // BLOCK)
    for first in range(0, other_extent, BN):
        n0 = first_other + first
        n = n0 + tl.arange(0, BN)
        skipped = outside_band(n0 - (m0 + BM - 1), n0 + BN - 1 - m0, band)
        if PATCH:
            skipped |= own_flag + tl.load(flags + first // BLOCK) == 0
        if not skipped:
            column_offsets = (first + tl.arange(0, BN)).to(tl.int64)[None, :] * other_step
            d_score = mma_zeros(BM, BN) + tl.load(d_score_rows[:, None] + column_offsets).to(tl.float32)
            clamped_n = tl.minimum(n, other_count - 1).to(tl.int64)
            other_tokens = batch_pointer(other, batch, inner) + clamped_n * other[3] + unit * other[4]
            if PATCH:
                d_sum += partial_sums(d_score, BM, BN)
                sums, weight_sums = add_tile_gradients(
                    sums, weight_sums, d_score, own_tokens, other_tokens, own[4], other[4],
                    CHUNK, DIRECT, WITH_D_WEIGHT, FAST, BM, BN,
                )  # fmt: skip
            else:
                max_b = tl.load(batch_pointer(other_max_abs, batch, inner) + n0 // BLOCK)
                a = batch_pointer(own_functions, batch, inner) + unit * own_columns + m
                b = batch_pointer(other_functions, batch, inner) + unit * other_columns + n
                if (max_a <= ADDITION_RANGE) & (max_b <= ADDITION_RANGE):
                    sums, weight_sums = add_tile_gradients(
                        sums, weight_sums, d_score, a + UNITS * own_columns, b + UNITS * other_columns, own_columns,
                        other_columns, CHUNK, ADDITION, WITH_D_WEIGHT, FAST, BM, BN,
                    )  # fmt: skip
                elif max_a + max_b <= PRODUCT_RANGE:
                    sums, weight_sums = add_tile_gradients(
                        sums, weight_sums, d_score, a, b, own_columns, other_columns,
                        CHUNK, PRODUCT, WITH_D_WEIGHT, FAST, BM, BN,
                    )  # fmt: skip
                elif (max_a <= CLAMPED_RANGE) & (max_b <= CLAMPED_RANGE):
                    sums, weight_sums = add_tile_gradients(
                        sums, weight_sums, d_score, a, b, own_columns, other_columns,
                        CHUNK, CLAMPED, WITH_D_WEIGHT, FAST, BM, BN,
                    )  # fmt: skip
                else:
                    sums, weight_sums = add_tile_gradients(
                        sums, weight_sums, d_score, own_tokens, other_tokens, own[4], other[4],
                        CHUNK, DIRECT, WITH_D_WEIGHT, FAST, BM, BN,
                    )  # fmt: skip
    unscale = 1.0 / tl.load(grad_scale)
    offsets = (batch.to(tl.int64) * own_count + m) * UNITS + unit
    exists = m < own_count
    weight = batch_pointer(weight, batch, inner) + unit
    # The lift has added nothing for a flagged block of own tokens.
    lifted_sum = tl.where(own_flag == 0, tl.sum(d_sum, 1), 0.0)
    for u in tl.static_range(CHUNK):
        gradient = tl.sum(sums[u], 1)
        weight_gradient = tl.zeros([BM], tl.float32)
        if WITH_D_WEIGHT:
            weight_gradient += tl.sum(weight_sums[u], 1)
        if PATCH:
            a = tl.load(own_tokens + u * own[4]).to(tl.float32)
            cell, fraction = find_cell(clamp(a, RANGE), RANGE, CELLS)
            gradient -= lerp(own_slope_table, cell, fraction, 1) * lifted_sum
            weight_gradient -= lerp(own_term_table, cell, fraction, 1) * lifted_sum
        gradient *= tl.load(weight + u) * unscale
        if ADD:
            gradient += tl.load(d_tokens + offsets + u, mask=exists, other=0.0)
        tl.store(d_tokens + offsets + u, gradient, mask=exists)
        if WITH_D_WEIGHT or PATCH:
            weight_gradient *= unscale
            if ADD:
                weight_gradient += tl.load(d_weight + offsets + u, mask=exists, other=0.0)
            tl.store(d_weight + offsets + u, weight_gradient, mask=exists)


@triton.jit
def any_flag(flags, blocks, SCAN: tl.constexpr):
    """Return a number above 0 if one of the blocks is flagged, else 0."""
    found = 0
    for first in range(0, blocks, SCAN):
        block = first + tl.arange(0, SCAN)
        found += tl.max(tl.load(flags + block, mask=block < blocks, other=0), 0)
    return found
