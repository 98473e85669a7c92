"""Additive scores by the lift: features of a wide dot product, corrections of outliers, and the gradients of both.

tanh(a + b) is nearly f(a) + g(b) + sum_r phi_r(a) psi_r(b), for activations in a range (`lift`). A feature is read from
a table by linear interpolation, and the query's is multiplied by the weight of its hidden unit. Feature r of unit h is
column h * RANK + r of a wide dot product, which is left to the matrix products of torch.

An activation outside the range, an outlier, is clamped to the range, and the outlier kernels add the difference. With
a~ for the clamped activation, the score of a pair lacks

    w_h (tanh(a_h + b_h) - tanh(a~_h + b~_h)),

and its derivatives lack the same of sech^2. This is 0 unless a or b is an outlier of that unit. A pair with two
outliers is corrected once. A block of tokens with many outliers is flagged: its features are 0, it has no outliers to
correct, and all of its pairs are computed exactly (`exact`).
"""
# ruff: noqa: N803 - Triton's conventions: capital names for constants

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.backends.triton.additive import FoldedProblem, Slab, exact
from regard.backends.triton.additive.exact import (
    TWICE_LOG2E,
    SideGradients,
    any_flag,
    clamp,
    direct_scores,
    find_cell,
    in_range,
    lerp,
    padded_count,
    tile_position,
)
from regard.backends.triton.additive.lift import CELLS, Tables
from regard.backends.triton.additive.softmax import weight_scale
from regard.backends.triton.launch import (
    INTERPRETED,
    batch_operand,
    cdiv,
    empty_float32,
    launch,
    padded_size,
    token_operand,
)
from regard.backends.triton.primitives import batch_pointer

# The sizes of tiles were found by timing each kernel alone on one H200.
# Tokens that a program lifts, or whose gradients it computes from features; a block is a multiple of it.
LIFT_TOKENS = 8
LIFT_WARPS, GRADIENT_WARPS = 4, 2
# A block in which more than one activation in 32 is an outlier is flagged.
ACTIVATIONS_PER_OUTLIER = 32
# Blocks of keys whose flags a program of `patch_scores` reads.
PATCH_BLOCKS = 16
# Tokens among which a program looks for outliers, tokens that it corrects, and tokens that it sums over at once.
OUTLIER_TOKENS, CORRECTED_TOKENS, SUMMED_TOKENS = 16, 512, 1024
# Tokens and hidden units that a program of `list_outliers` reads at once.
LIST_TOKENS, LIST_UNITS = 1024, 4


# --- Features of tokens ----------------------------------------------------------------------------------------


class Lifted(NamedTuple):
    """Tokens and their features.

    Attributes:
        tokens: (outer or 1, inner or 1, tokens, units).
        features: (outer or 1, inner or 1, padded tokens, units * rank) in float16, 0 in flagged blocks.
        own_term: w'f(a) or w'g(b), which a token adds to all of its scores, (outer or 1, inner or 1, padded tokens); 0
            in flagged blocks.
        flags: 1 for a block with many outliers, (outer or 1, inner or 1, blocks).
        outlier_count: number of outliers of each token, (outer or 1, inner or 1, padded tokens); 0 in flagged blocks.
        outliers: their hidden units, (outer or 1, inner or 1, padded tokens, units).
        tables: the tables of this side.
    """

    tokens: Tensor
    features: Tensor
    own_term: Tensor
    flags: Tensor
    outlier_count: Tensor
    outliers: Tensor
    tables: Tables


def lift(tokens: Tensor, weight: Tensor, tables: Tables, *, is_query: bool) -> Lifted:
    """Return the features of tokens.

    Args:
        tokens: (outer or 1, inner or 1, tokens, units).
        weight: (outer or 1, inner or 1, units).
        tables: the tables of this side.
        is_query: whether the tokens are queries, whose features include the weight.
    """
    outer, inner = (max(x, y) for x, y in zip(tokens.shape[:2], weight.shape[:2], strict=True))
    count, units = tokens.shape[-2:]
    columns, rank = padded_count(count), tables.values.shape[-1]
    features = tokens.new_empty(outer, inner, columns, units * rank, dtype=torch.float16)
    own_term = empty_float32(tokens, outer, inner, columns)
    flags, outlier_count = (
        tokens.new_empty(outer, inner, size, dtype=torch.int32) for size in (columns // exact.BLOCK, columns)
    )
    outliers = tokens.new_empty(outer, inner, columns, units, dtype=torch.int16)
    blocks = columns // LIFT_TOKENS
    launch(
        lift_tokens, outer * inner * blocks,
        token_operand(tokens), batch_operand(weight), tables.values, tables.own_term, features, own_term, flags,
        outlier_count, outliers, inner=inner, count=count, columns=columns, blocks=blocks,
        RANGE=tables.range, CELLS=CELLS, RANK=rank, PADDED_RANK=padded_size(rank), UNITS=units,
        PADDED=padded_size(units), INCLUDES_WEIGHT=is_query,
        MAX_OUTLIERS=exact.BLOCK * units // ACTIVATIONS_PER_OUTLIER, BLOCK=exact.BLOCK, BT=LIFT_TOKENS,
        num_warps=LIFT_WARPS,
    )  # fmt: skip
    return Lifted(tokens, features, own_term, flags, outlier_count, outliers, tables)


@triton.jit
def count_outliers(source, first, count, token_step, unit_step, RANGE: tl.constexpr, UNITS: tl.constexpr,
                   PADDED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Return how many activations of each token of a block are outside the range or NaN, (BLOCK,)."""
    t, h = first + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    pointers = source + t.to(tl.int64)[:, None] * token_step + h.to(tl.int64)[None, :] * unit_step
    a = tl.load(pointers, mask=(t < count)[:, None] & (h < UNITS)[None, :], other=0.0).to(tl.float32)
    return tl.sum(tl.where(in_range(a, RANGE), 0, 1), 1)


@triton.jit
def store_ranks(row, table_row, fraction, factor, kept, in_bounds, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Store the features of COUNT ranks, a power of two, after those of the larger powers of two in RANK."""
    r = RANK // (2 * COUNT) * (2 * COUNT) + tl.arange(0, COUNT)
    low, high = table_row[:, None] + r[None, :], table_row[:, None] + RANK + r[None, :]
    exists = in_bounds[:, None] & (r < RANK)[None, :]
    first = tl.load(low, mask=exists, other=0.0)
    feature = (first + fraction[:, None] * (tl.load(high, mask=exists, other=0.0) - first)) * factor[:, None]
    tl.store(row[:, None] + r[None, :], tl.where(kept, feature, 0.0).to(tl.float16), mask=exists)


@triton.jit
def lift_tokens(
    tokens, weight, value_table, own_term_table, features, own_term, flags, outlier_count, outliers,
    inner, count, columns, blocks,
    RANGE: tl.constexpr, CELLS: tl.constexpr, RANK: tl.constexpr, PADDED_RANK: tl.constexpr, UNITS: tl.constexpr,
    PADDED: tl.constexpr, INCLUDES_WEIGHT: tl.constexpr, MAX_OUTLIERS: tl.constexpr, BLOCK: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
    """Write everything in `Lifted` of BT tokens.

    value_table, own_term_table: tables of the lift.
    MAX_OUTLIERS: a block with more outliers is flagged.
    INCLUDES_WEIGHT: the features include the weight, scaled by `weight_scale`.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    weight = batch_pointer(weight, batch, inner)
    source = batch_pointer(tokens, batch, inner)
    first = block * BT // BLOCK * BLOCK
    number = count_outliers(source, first, count, tokens[3], tokens[4], RANGE, UNITS, PADDED, BLOCK)
    flag = (tl.sum(number, 0) > MAX_OUTLIERS).to(tl.int32)
    if block * BT % BLOCK == 0:
        tl.store(flags + (batch * columns + first) // BLOCK, flag)
    t = first + tl.arange(0, BLOCK)
    is_own = (t >= block * BT) & (t < block * BT + BT)
    number = tl.where(is_own, number * (1 - flag), 0)
    tl.store(outlier_count + batch.to(tl.int64) * columns + t, number, mask=is_own)
    has_outliers = tl.sum(number, 0) > 0
    h = tl.arange(0, PADDED)
    w = tl.load(weight + h, mask=h < UNITS, other=0.0)
    factor = w * weight_scale(weight, UNITS, PADDED) if INCLUDES_WEIGHT else w * 0.0 + 1.0
    source += h.to(tl.int64) * tokens[4]
    batch_offset = batch.to(tl.int64) * columns
    for token in range(block * BT, block * BT + BT):
        kept = (token < count) & (flag == 0)
        a = tl.load(source + tl.cast(token, tl.int64) * tokens[3], mask=(h < UNITS) & kept, other=0.0).to(tl.float32)
        if has_outliers:
            is_outlier = tl.where(in_range(a, RANGE), 0, 1)
            pointers = outliers + (batch_offset + token) * UNITS + tl.cumsum(is_outlier, 0) - 1
            tl.store(pointers, h.to(tl.int16), mask=is_outlier == 1)
        cell, fraction = find_cell(clamp(a, RANGE), RANGE, CELLS)
        row = features + (batch_offset + token) * (UNITS * RANK) + h * RANK
        table_row = value_table + cell * RANK
        # All ranks at once if few lanes are idle then, otherwise the powers of two in RANK one by one.
        if 8 * RANK >= 7 * PADDED_RANK:
            store_ranks(row, table_row, fraction, factor, kept, h < UNITS, RANK, PADDED_RANK)
        else:
            for power in tl.static_range(6):
                if RANK & (32 >> power):
                    store_ranks(row, table_row, fraction, factor, kept, h < UNITS, RANK, 32 >> power)
        total = tl.sum(w * lerp(own_term_table, cell, fraction, 1), 0)
        tl.store(own_term + batch_offset + token, tl.where(kept, total, 0.0))


# --- Scores ----------------------------------------------------------------------------------------------------


class LiftedScores:
    """Lifted scores; see `additive.Scores`. They are multiplied by `weight_scale`, the biases are not."""

    def __init__(self, folded: FoldedProblem, query_tables: Tables, key_tables: Tables) -> None:
        """Compute the features of the tokens of a problem."""
        self.folded = folded
        self.query = lift(folded.query, folded.weight, query_tables, is_query=True)
        self.key = lift(folded.key, folded.weight, key_tables, is_query=False)
        self.query_bias: Tensor | None = self.query.own_term
        self.key_bias: Tensor | None = self.key.own_term
        if folded.key_bias is not None:
            self.key_bias = self.key_bias + folded.key_bias

    def of_slab(self, slab: Slab) -> Tensor:
        """Return the scores of a slab, (num_batch, rows, columns)."""
        folded, query, key = self.folded, self.query, self.key
        query_features = slab_features(folded, slab, query, is_query=True)
        key_features = slab_features(folded, slab, key, is_query=False)
        scores = product(query_features, key_features.mT)
        columns = scores.shape[-1]
        row_blocks, key_blocks = slab.rows // exact.BLOCK, columns // exact.BLOCK
        launch(
            patch_scores, slab.num_batch * row_blocks * cdiv(key_blocks, PATCH_BLOCKS),
            token_operand(query.tokens), token_operand(key.tokens), batch_operand(query.flags),
            batch_operand(key.flags), batch_operand(query.own_term), batch_operand(key.own_term),
            batch_operand(folded.weight), scores,
            first_batch=slab.first_batch, first_row=slab.first_row, inner=folded.inner, queries=folded.queries,
            keys=folded.keys, row_blocks=row_blocks, key_blocks=key_blocks, key_columns=columns, UNITS=folded.units,
            PADDED=padded_size(folded.units), SPAN=PATCH_BLOCKS, FAST=not INTERPRETED, BM=exact.BLOCK,
            BN=exact.BLOCK,
        )  # fmt: skip
        self._correct(slab, scores, query, key, is_query=True)
        self._correct(slab, scores, key, query, is_query=False)
        return scores

    def gradients(self, grad_scale: Tensor, d_log_mass: Tensor, needs: Sequence[bool]) -> "LiftedGradients":
        """Return the gradients of query, key and weight, to which no slab has been added."""
        return LiftedGradients(self, grad_scale, d_log_mass, needs)

    def _correct(self, slab: Slab, scores: Tensor, own: Lifted, other: Lifted, *, is_query: bool) -> None:
        """Add the corrections of the outliers of one side; pairs of two outliers are corrected with the queries."""
        folded, (_, rows, columns) = self.folded, scores.shape
        side = slab.side(columns, is_query=is_query)
        spans = cdiv(side.other_extent, CORRECTED_TOKENS)
        launch(
            correct_outlier_scores, slab.num_batch * (side.own_extent // OUTLIER_TOKENS) * spans,
            token_operand(own.tokens), token_operand(other.tokens), batch_operand(own.outlier_count),
            batch_operand(own.outliers), batch_operand(other.flags), batch_operand(folded.weight), scores,
            first_batch=slab.first_batch, inner=folded.inner, spans=spans, other_count=other.tokens.shape[-2],
            element_step=rows * columns, **side._asdict(), RANGE=own.tables.range, OTHER_RANGE=other.tables.range,
            INCLUDE_DOUBLE_OUTLIERS=is_query, UNITS=folded.units, PADDED=padded_size(folded.units), BLOCK=exact.BLOCK,
            BM=OUTLIER_TOKENS, BN=CORRECTED_TOKENS,
        )  # fmt: skip


def slab_features(folded: FoldedProblem, slab: Slab, lifted: Lifted, *, is_query: bool) -> Tensor:
    """Return the features of a slab's queries or keys as a view, (num_batch, rows or columns, units * rank).

    It is a view because all batch elements of a slab have the same outer index.
    """
    outer, first = divmod(slab.first_batch, folded.inner)
    features = lifted.features[outer if lifted.features.shape[0] > 1 else 0]
    if features.shape[0] > 1:
        features = features[first : first + slab.num_batch]
    else:
        features = features.expand(slab.num_batch, -1, -1)
    return features[:, slab.first_row : slab.first_row + slab.rows] if is_query else features


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the batched product of matrices in half precision, in float32."""
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # torch has no such product on a CPU, where only the interpreter runs


@triton.jit
def patch_scores(
    query, key, query_flags, key_flags, query_own_term, key_own_term, weight, slab_scores,
    first_batch, first_row, inner, queries, keys, row_blocks, key_blocks, key_columns,
    UNITS: tl.constexpr, PADDED: tl.constexpr, SPAN: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Overwrite the tiles of flagged blocks by exact scores, scaled and without own terms like lifted scores.

    A program reads the flags of SPAN blocks of keys. The operands are those of `Lifted`.
    """
    element, batch, row_block, span = tile_position(first_batch, row_blocks, tl.cdiv(key_blocks, SPAN))
    row = first_row + row_block * BM
    own_flag = tl.load(batch_pointer(query_flags, batch, inner) + row // BM)
    flags = batch_pointer(key_flags, batch, inner)
    last = tl.minimum(span * SPAN + SPAN, key_blocks)
    if own_flag + any_flag(flags + span * SPAN, last - span * SPAN, SPAN) > 0:
        m = row + tl.arange(0, BM)
        weights = batch_pointer(weight, batch, inner)
        own_term = tl.load(batch_pointer(query_own_term, batch, inner) + m)
        scale = weight_scale(weights, UNITS, PADDED)
        slab_rows = (element.to(tl.int64) * row_blocks + row_block) * BM + tl.arange(0, BM)
        for block in range(span * SPAN, last):
            if own_flag + tl.load(flags + block) > 0:
                n = block * BN + tl.arange(0, BN)
                scores = direct_scores(query, key, weights, batch, inner, m, n, queries, keys, UNITS, BM, BN, FAST)
                scores -= own_term[:, None] + tl.load(batch_pointer(key_own_term, batch, inner) + n)[None, :]
                tl.store(slab_scores + slab_rows[:, None] * key_columns + n[None, :], scores * scale)


@triton.jit
def tail(x):
    """Return r = 1 / (1 + e^2x), so that tanh x = 1 - 2 r and sech^2 x = 4 r (1 - r)."""
    return 1.0 / (1.0 + tl.exp2(x * TWICE_LOG2E))


@triton.jit
def value_correction(a, b, RANGE: tl.constexpr, OTHER_RANGE: tl.constexpr):
    """Return tanh(a + b) - tanh(a~ + b~)."""
    return 2.0 * (tail(clamp(a, RANGE) + clamp(b, OTHER_RANGE)) - tail(a + b))


@triton.jit
def slope_correction(a, b, RANGE: tl.constexpr, OTHER_RANGE: tl.constexpr):
    """Return sech^2(a + b) - sech^2(a~ + b~)."""
    r, clamped = tail(a + b), tail(clamp(a, RANGE) + clamp(b, OTHER_RANGE))
    return 4.0 * ((r - r * r) - (clamped - clamped * clamped))


@triton.jit
def is_lifted(flags, token, count, BLOCK: tl.constexpr):
    """Return whether tokens exist and their block is not flagged."""
    return tl.load(flags + token // BLOCK, mask=token < count, other=1) == 0


@triton.jit
def correct_outlier_scores(
    own, other, outlier_count, outliers, other_flags, weight, slab_scores,
    first_batch, first_own, first_other, inner, own_extent, other_extent, other_count, spans,
    element_step, own_step, other_step,
    RANGE: tl.constexpr, OTHER_RANGE: tl.constexpr, INCLUDE_DOUBLE_OUTLIERS: tl.constexpr, UNITS: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add the corrections of the outliers of BM own tokens to their scores with BN other tokens.

    outlier_count, outliers: those of `Lifted`.
    element_step, own_step and other_step lead to the next batch element, own token and other token of the slab.
    INCLUDE_DOUBLE_OUTLIERS: also where the other activation is an outlier; only one side does this.
    """
    program = tl.program_id(0)
    own_blocks = own_extent // BM
    element, block, span = program // spans // own_blocks, program // spans % own_blocks, program % spans
    batch = first_batch + element
    m0 = first_own + block * BM
    t = tl.arange(0, BM)
    number = tl.load(batch_pointer(outlier_count, batch, inner) + m0 + t)
    left = tl.sum((number > 0).to(tl.int32), 0)
    if left == 0:
        return
    outliers = batch_pointer(outliers, batch, inner) + m0.to(tl.int64) * UNITS
    weight = batch_pointer(weight, batch, inner)
    scale = weight_scale(weight, UNITS, PADDED)
    other_row = span * BN + tl.arange(0, BN)
    n = first_other + other_row
    in_bounds = (other_row < other_extent) & is_lifted(batch_pointer(other_flags, batch, inner), n, other_count, BLOCK)
    own_tokens = batch_pointer(own, batch, inner) + m0.to(tl.int64) * own[3]
    other_tokens = batch_pointer(other, batch, inner) + n.to(tl.int64) * other[3]
    block_scores = slab_scores + element.to(tl.int64) * element_step + (block * BM).to(tl.int64) * own_step
    block_scores += other_row.to(tl.int64) * other_step
    # Find the next token with outliers in registers. To look for it in memory would take longer than everything else.
    for _ in range(left):
        token = tl.min(tl.where(number > 0, t, BM), 0)
        pointers = block_scores + token.to(tl.int64) * own_step
        before = tl.load(pointers, mask=in_bounds, other=0.0)
        correction = tl.zeros([BN], tl.float32)
        for index in range(tl.sum(tl.where(t == token, number, 0), 0)):
            unit = tl.load(outliers + token * UNITS + index).to(tl.int64)
            a = tl.load(own_tokens + token.to(tl.int64) * own[3] + unit * own[4]).to(tl.float32)
            b = tl.load(other_tokens + unit * other[4], mask=in_bounds, other=0.0).to(tl.float32)
            difference = value_correction(a, b, RANGE, OTHER_RANGE)
            if not INCLUDE_DOUBLE_OUTLIERS:
                difference = tl.where(in_range(b, OTHER_RANGE), difference, 0.0)
            correction += tl.load(weight + unit) * difference
        tl.store(pointers, before + correction * scale, mask=in_bounds)
        number = tl.where(t == token, 0, number)


# --- Gradients -------------------------------------------------------------------------------------------------


class OutlierIndex(NamedTuple):
    """The outliers of each hidden unit, without those of flagged blocks.

    Attributes:
        count: how many, (outer or 1, inner or 1, units).
        tokens: which tokens, (outer or 1, inner or 1, units, padded tokens).
    """

    count: Tensor
    tokens: Tensor


def outlier_index(own: Lifted) -> OutlierIndex:
    """Return the outliers of one side by hidden unit, as the backward pass reads them."""
    outer, inner, columns, units = own.outliers.shape
    count, tokens = own.flags.new_empty(outer, inner, units), own.flags.new_empty(outer, inner, units, columns)
    blocks = cdiv(units, LIST_UNITS)
    launch(
        list_outliers, outer * inner * blocks,
        token_operand(own.tokens), batch_operand(own.flags), count, tokens,
        inner=inner, count=own.tokens.shape[-2], columns=columns, blocks=blocks, RANGE=own.tables.range, UNITS=units,
        BLOCK=exact.BLOCK, BT=LIST_TOKENS, BU=LIST_UNITS,
    )  # fmt: skip
    return OutlierIndex(count, tokens)


class LiftedGradients:
    """The gradients of query, key and weight; see `additive.TokenGradients`.

    The gradients of a slab's queries are complete with that slab. Those of the keys are sums over the slabs of the same
    batch elements: products with features are added up, and turned into gradients with the last of these slabs.
    """

    def __init__(self, scores: LiftedScores, grad_scale: Tensor, d_log_mass: Tensor, needs: Sequence[bool]) -> None:
        """Allocate the gradients that are needed, and list the outliers, which all slabs use."""
        folded, (query, key, weight) = scores.folded, needs
        self._scores, self._grad_scale, self._d_log_mass, self._needs = scores, grad_scale, d_log_mass, needs
        self._key_products: Tensor | None = None
        self._key_sums: Tensor | None = None
        self._query: SideGradients | None = None
        self._key: SideGradients | None = None
        if query or weight:
            shape = folded.batch_size, folded.queries, folded.units
            self._query = SideGradients(*(empty_float32(folded.query, *shape) for _ in range(2)))
        if key or weight:
            shape = 2, folded.batch_size, folded.keys, folded.units
            self._key = SideGradients(*folded.weight.new_zeros(shape))
        if any(needs):
            self._query_index, self._key_index = outlier_index(scores.query), outlier_index(scores.key)

    def add(self, slab: Slab, d_scores: Tensor, sums: Tensor) -> None:
        """Add one slab."""
        if self._query is not None:
            self._add_query_features(slab, d_scores, self._query)
        if self._key is not None:
            self._add_key_features(slab, d_scores, sums, self._key)
        for add in (self._correct, self._patch):
            if self._query is not None:
                add(slab, d_scores, self._query, is_query=True)
            if self._key is not None:
                add(slab, d_scores, self._key, is_query=False)

    def results(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients (batch, queries, units), (batch, keys, units) and (batch, 1, units)."""
        query, key, d_weight = self._query, self._key, None
        if self._needs[2] and query is not None and key is not None:
            d_weight = query.weight.sum(-2, keepdim=True)
            d_weight += key.weight.sum(-2, keepdim=True)
        return None if query is None else query.tokens, None if key is None else key.tokens, d_weight

    def _add_query_features(self, slab: Slab, d_scores: Tensor, d_query: SideGradients) -> None:
        """Write the gradients of the slab's queries, from products with the features of the keys."""
        scores = self._scores
        products = product(d_scores, slab_features(scores.folded, slab, scores.key, is_query=False))
        # The d_scores of a row sum to the gradient of its log_mass.
        self._launch_features(slab, products, self._d_log_mass, scores.query, d_query, is_query=True)

    def _add_key_features(self, slab: Slab, d_scores: Tensor, sums: Tensor, d_key: SideGradients) -> None:
        """Add products with the features of the slab's queries; the last slab turns them into the keys' gradients."""
        scores = self._scores
        products = product(d_scores.mT, slab_features(scores.folded, slab, scores.query, is_query=True))
        self._key_products = products if self._key_products is None else self._key_products.add_(products)
        self._key_sums = sums if self._key_sums is None else self._key_sums.add_(sums)
        if slab.is_last:
            self._launch_features(slab, self._key_products, self._key_sums, scores.key, d_key, is_query=False)
            self._key_products = self._key_sums = None

    def _launch_features(
        self, slab: Slab, products: Tensor, sums: Tensor, own: Lifted, d_own: SideGradients, *, is_query: bool
    ) -> None:
        """Launch `feature_gradients` for one side of a slab."""
        folded, tables, rows = self._scores.folded, own.tables, products.shape[-2]
        blocks, rank = rows // LIFT_TOKENS, tables.values.shape[-1]
        launch(
            feature_gradients, slab.num_batch * blocks,
            token_operand(own.tokens), batch_operand(folded.weight), batch_operand(own.flags), tables.values,
            tables.own_term, tables.slopes, tables.own_slope, products, sums, self._grad_scale, d_own.tokens,
            d_own.weight, inner=folded.inner, first_batch=slab.first_batch, first=slab.first_row if is_query else 0,
            count=own.tokens.shape[-2], rows=rows, blocks=blocks, RANGE=tables.range, CELLS=CELLS, RANK=rank,
            PADDED_RANK=padded_size(rank), UNITS=folded.units, PADDED=padded_size(folded.units), IS_QUERY=is_query,
            BLOCK=exact.BLOCK, BT=LIFT_TOKENS, num_warps=GRADIENT_WARPS,
        )  # fmt: skip

    def _correct(self, slab: Slab, d_scores: Tensor, d_own: SideGradients, *, is_query: bool) -> None:
        """Add the corrections of the outliers of both sides to the gradients of one."""
        folded, (_, rows, columns) = self._scores.folded, d_scores.shape
        own, other = self._own_and_other(is_query=is_query)
        own_index, other_index = self._query_index, self._key_index
        if not is_query:
            own_index, other_index = other_index, own_index
        side = slab.side(columns, is_query=is_query)
        chunks = cdiv(side.own_extent, CORRECTED_TOKENS)
        launch(
            correct_outlier_gradients, slab.num_batch * folded.units * chunks,
            token_operand(own.tokens), token_operand(other.tokens), batch_operand(own_index.count),
            batch_operand(own_index.tokens), batch_operand(other_index.count), batch_operand(other_index.tokens),
            batch_operand(own.flags), batch_operand(other.flags), batch_operand(folded.weight), d_scores,
            self._grad_scale, d_own.tokens, d_own.weight, first_batch=slab.first_batch, inner=folded.inner,
            own_count=own.tokens.shape[-2], other_count=other.tokens.shape[-2], chunks=chunks,
            own_columns=own_index.tokens.shape[-1], other_columns=other_index.tokens.shape[-1],
            element_step=rows * columns, **side._asdict(), RANGE=own.tables.range, OTHER_RANGE=other.tables.range,
            UNITS=folded.units, WITH_D_WEIGHT=is_query, BLOCK=exact.BLOCK, BM=CORRECTED_TOKENS, BN=SUMMED_TOKENS,
        )  # fmt: skip

    def _patch(self, slab: Slab, d_scores: Tensor, d_own: SideGradients, *, is_query: bool) -> None:
        """Add the exact gradients of the tiles of flagged blocks."""
        own, other = self._own_and_other(is_query=is_query)
        unused = (own.own_term, other.own_term) * 2
        operands = exact.TokenOperands(*unused, own_flags=own.flags, other_flags=other.flags)
        exact.launch_token_gradients(
            self._scores.folded, slab, own.tokens, other.tokens, operands, d_scores, self._grad_scale, d_own,
            is_query=is_query, own_term_table=own.tables.own_term, own_slope_table=own.tables.own_slope,
            own_columns=0, other_columns=0, RANGE=own.tables.range, PATCH=True, ADD=True,
        )  # fmt: skip

    def _own_and_other(self, *, is_query: bool) -> tuple[Lifted, Lifted]:
        query, key = self._scores.query, self._scores.key
        return (query, key) if is_query else (key, query)


@triton.jit
def lerp_rows(table, cell, fraction, r, RANK: tl.constexpr):
    """Return linear interpolations in a table (CELLS + 1, RANK), (units, ranks), 0 beyond the last rank."""
    pointers = table + cell[:, None] * RANK + r[None, :]
    in_bounds = (r < RANK)[None, :]
    low = tl.load(pointers, mask=in_bounds, other=0.0)
    return low + fraction[:, None] * (tl.load(pointers + RANK, mask=in_bounds, other=0.0) - low)


@triton.jit
def feature_gradients(
    tokens, weight, flags, value_table, own_term_table, slope_table, own_slope_table, products, sums, grad_scale,
    d_tokens, d_weight,
    inner, first_batch, first, count, rows, blocks,
    RANGE: tl.constexpr, CELLS: tl.constexpr, RANK: tl.constexpr, PADDED_RANK: tl.constexpr, UNITS: tl.constexpr,
    PADDED: tl.constexpr, IS_QUERY: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Compute the gradients (batch, count, UNITS) of BT tokens of the slab and of the weight, 0 in flagged blocks.

    products: (num_batch, rows, UNITS * RANK), the d_scores of the slab times the features of the other side.
    first: the first token of the slab.
    sums: the sums of d_scores.
    IS_QUERY: the tokens are queries; products lack the weight, and sums are (batch, count) without grad_scale.
        Otherwise products have the weight, scaled by `weight_scale`, sums are (num_batch, rows), and the gradients are
        added to what d_tokens and d_weight hold.
    """
    element, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    batch = first_batch + element
    h, r = tl.arange(0, PADDED), tl.arange(0, PADDED_RANK)
    in_bounds = h < UNITS
    weight = batch_pointer(weight, batch, inner)
    w = tl.load(weight + h, mask=in_bounds, other=0.0)
    scale = tl.load(grad_scale)
    unscale = 1.0 / scale
    source = batch_pointer(tokens, batch, inner) + h.to(tl.int64) * tokens[4]
    kept = tl.load(batch_pointer(flags, batch, inner) + (first + block * BT) // BLOCK) == 0
    for row in range(block * BT, tl.minimum(block * BT + BT, count - first)):
        t = first + row
        a = tl.load(source + tl.cast(t, tl.int64) * tokens[3], mask=in_bounds & kept, other=0.0).to(tl.float32)
        cell, fraction = find_cell(clamp(a, RANGE), RANGE, CELLS)
        slab_row = element.to(tl.int64) * rows + row
        pointers = products + slab_row * (UNITS * RANK) + h[:, None] * RANK + r[None, :]
        product = tl.load(pointers, mask=in_bounds[:, None] & (r < RANK)[None, :], other=0.0).to(tl.float32)
        position = batch.to(tl.int64) * count + t
        d_sum = tl.load(sums + position) * scale if IS_QUERY else tl.load(sums + slab_row)
        gradient = tl.sum(lerp_rows(slope_table, cell, fraction, r, RANK) * product, 1)
        own_part = lerp(own_slope_table, cell, fraction, 1) * d_sum
        weight_gradient = lerp(own_term_table, cell, fraction, 1) * d_sum
        if IS_QUERY:
            gradient = (gradient + own_part) * w
            weight_gradient += tl.sum(lerp_rows(value_table, cell, fraction, r, RANK) * product, 1)
        else:
            gradient = gradient / weight_scale(weight, UNITS, PADDED) + own_part * w
        offsets = position * UNITS + h
        gradient = tl.where(kept, gradient * unscale, 0.0)
        weight_gradient = tl.where(kept, weight_gradient * unscale, 0.0)
        if not IS_QUERY:
            # Keys come last: the exact tiles and the outliers of earlier slabs have added to their gradients.
            gradient += tl.load(d_tokens + offsets, mask=in_bounds, other=0.0)
            weight_gradient += tl.load(d_weight + offsets, mask=in_bounds, other=0.0)
        tl.store(d_tokens + offsets, gradient, mask=in_bounds)
        tl.store(d_weight + offsets, weight_gradient, mask=in_bounds)


@triton.jit
def list_outliers(
    tokens, flags, outlier_count, outlier_tokens, inner, count, columns, blocks,
    RANGE: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Write an `OutlierIndex` of BU hidden units.

    outlier_count: (batch, UNITS); outlier_tokens: (batch, UNITS, columns), in order.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    u = block * BU + tl.arange(0, BU)
    source = batch_pointer(tokens, batch, inner) + u.to(tl.int64)[None, :] * tokens[4]
    flags = batch_pointer(flags, batch, inner)
    unit_lists = outlier_tokens + (batch.to(tl.int64) * UNITS + u)[None, :] * columns
    found = tl.zeros([BU], tl.int32)
    for first in range(0, count, BT):
        t = first + tl.arange(0, BT)
        in_bounds = (t < count)[:, None] & (u < UNITS)[None, :]
        a = tl.load(source + t.to(tl.int64)[:, None] * tokens[3], mask=in_bounds, other=0.0).to(tl.float32)
        is_outlier = tl.where(is_lifted(flags, t, count, BLOCK)[:, None] & ~in_range(a, RANGE), 1, 0)
        index = found[None, :] + tl.cumsum(is_outlier, 0) - 1
        tl.store(unit_lists + index, tl.broadcast_to(t[:, None], [BT, BU]), mask=is_outlier == 1)
        found += tl.sum(is_outlier, 0)
    tl.store(outlier_count + batch * UNITS + u, found, mask=u < UNITS)


@triton.jit
def correct_outlier_gradients(
    own, other, own_outlier_count, own_outliers, other_outlier_count, other_outliers, own_flags, other_flags,
    weight, d_scores, grad_scale, d_tokens, d_weight,
    first_batch, first_own, first_other, inner, own_count, other_count, own_extent, other_extent, chunks,
    own_columns, other_columns, element_step, own_step, other_step,
    RANGE: tl.constexpr, OTHER_RANGE: tl.constexpr, UNITS: tl.constexpr, WITH_D_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add the corrections of the outliers of both sides to the gradients of BM own tokens in one hidden unit.

    own_outlier_count to other_outliers: those of `OutlierIndex`.
    d_tokens: (batch, own_count, UNITS).
    WITH_D_WEIGHT: add to d_weight, too, of which only the sum over tokens counts.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    unit, element = program % UNITS, program // UNITS
    batch = first_batch + element
    num_own = tl.load(batch_pointer(own_outlier_count, batch, inner) + unit)
    num_other = tl.load(batch_pointer(other_outlier_count, batch, inner) + unit)
    if num_own + num_other == 0:
        return
    own_row = chunk * BM + tl.arange(0, BM)
    m = first_own + own_row
    exists = (own_row < own_extent) & is_lifted(batch_pointer(own_flags, batch, inner), m, own_count, BLOCK)
    own_tokens = batch_pointer(own, batch, inner) + unit.to(tl.int64) * own[4]
    other_tokens = batch_pointer(other, batch, inner) + unit.to(tl.int64) * other[4]
    a = tl.load(own_tokens + m.to(tl.int64) * own[3], mask=exists, other=0.0).to(tl.float32)
    d_scores += element.to(tl.int64) * element_step
    gradient, weight_gradient = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    # Outliers of the other side, against all of these tokens.
    outliers = batch_pointer(other_outliers, batch, inner) + unit.to(tl.int64) * other_columns
    for index in range(num_other):
        n = tl.load(outliers + index)
        other_row = n - first_other
        if (other_row >= 0) & (other_row < other_extent):
            b = tl.load(other_tokens + n.to(tl.int64) * other[3]).to(tl.float32)
            pointers = d_scores + other_row.to(tl.int64) * other_step + own_row.to(tl.int64) * own_step
            d_score = tl.load(pointers, mask=exists, other=0.0).to(tl.float32)
            gradient += d_score * slope_correction(a, b, RANGE, OTHER_RANGE)
            if WITH_D_WEIGHT:
                weight_gradient += d_score * value_correction(a, b, RANGE, OTHER_RANGE)
    # Outliers of this side, against the other activations in range.
    num_corrected = num_other
    outliers = batch_pointer(own_outliers, batch, inner) + unit.to(tl.int64) * own_columns
    for index in range(num_own):
        t = tl.load(outliers + index)
        row = t - first_own
        if (row >= chunk * BM) & (row < tl.minimum(chunk * BM + BM, own_extent)):
            outlier = tl.load(own_tokens + t.to(tl.int64) * own[3]).to(tl.float32)
            slopes, values = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
            for first in range(0, other_extent, BN):
                lane = first + tl.arange(0, BN)
                n = first_other + lane
                in_bounds = (lane < other_extent) & is_lifted(
                    batch_pointer(other_flags, batch, inner), n, other_count, BLOCK
                )
                b = tl.load(other_tokens + n.to(tl.int64) * other[3], mask=in_bounds, other=0.0).to(tl.float32)
                in_bounds &= in_range(b, OTHER_RANGE)
                pointers = d_scores + row.to(tl.int64) * own_step + lane.to(tl.int64) * other_step
                d_score = tl.load(pointers, mask=in_bounds, other=0.0).to(tl.float32)
                slopes += d_score * slope_correction(outlier, b, RANGE, OTHER_RANGE)
                if WITH_D_WEIGHT:
                    values += d_score * value_correction(outlier, b, RANGE, OTHER_RANGE)
            num_corrected += 1
            gradient += tl.where(own_row == row, tl.sum(slopes, 0), 0.0)
            weight_gradient += tl.where(own_row == row, tl.sum(values, 0), 0.0)
    if num_corrected == 0:
        return
    unscale = 1.0 / tl.load(grad_scale)
    offsets = (batch.to(tl.int64) * own_count + m) * UNITS + unit
    factor = tl.load(batch_pointer(weight, batch, inner) + unit) * unscale
    tl.store(d_tokens + offsets, tl.load(d_tokens + offsets, mask=exists, other=0.0) + gradient * factor, mask=exists)
    if WITH_D_WEIGHT:
        first_offset = (batch.to(tl.int64) * own_count + first_own + chunk * BM) * UNITS + unit
        whole = tl.sum(tl.where(exists, weight_gradient, 0.0), 0)
        tl.store(d_weight + first_offset, tl.load(d_weight + first_offset) + whole * unscale)
