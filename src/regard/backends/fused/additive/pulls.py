"""The backward kernel of exact scores: from the changes of a slab's scores to the gradients of one side's tokens.

da_h = w_h sum_j dS_ij (1 - tanh^2(a_ih + b_jh)) and dw_h = sum_ij dS_ij tanh(a_ih + b_jh), where two hidden units share
a reciprocal (`pairs`): four would need too many registers. The same kernel serves both sides: "own" are the tokens
whose gradient it forms, "other" those it sums over.
"""
# ruff: noqa: N803, RUF005 - Triton's dialect: capital constants, tuples by +, one type in both arms of an `if`

import triton
import triton.language as tl

from regard.backends.fused.additive.features import between, cell_of, within
from regard.backends.fused.additive.pairs import (
    CAPPED,
    CAPPED_REACH,
    DIRECT,
    NEAR,
    PLAIN,
    PLAIN_REACH,
    SUM,
    denominator,
    empty_tile,
    reciprocals,
    slope,
    slope_scale,
)
from regard.backends.fused.additive.scores import any_flag, is_outside
from regard.backends.fused.tiles import start


@triton.jit
def sum_own(tile, BM: tl.constexpr, BN: tl.constexpr):
    """Sums (BM, 4) over the other tokens, as far as one thread has them.

    In the layout of the matrix units it holds columns 8 j + 2 q and 8 j + 2 q + 1 for one q: nothing goes between
    threads before the end.
    """
    return tl.sum(tl.sum(tl.reshape(tile, [BM, BN // 8, 4, 2]), 1), 2)


@triton.jit
def tanh_sum(change, whole, r, a, b, MODE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums of change * tanh(a + b) from r = 1 / denominator, where `whole` sums the changes."""
    if MODE == SUM:
        result = sum_own(change * ((a[:, None] + b[None, :]) * r), BM, BN)
    else:
        result = whole - 2.0 * sum_own(change * r, BM, BN)
    return result


@triton.jit
def add_tile(
    sums, weight_sums, change, own, other, own_step, other_step,
    CHUNK: tl.constexpr, MODE: tl.constexpr, WEIGHTED: tl.constexpr, FAST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Add a tile's part to the sums of CHUNK hidden units, tuples of (BM, 4) each."""
    new, new_weights = (), ()
    whole = sum_own(change, BM, BN)
    for pair in tl.static_range(CHUNK // 2):
        a, b = own + 2 * pair * own_step, other + 2 * pair * other_step
        a0, a1 = tl.load(a).to(tl.float32), tl.load(a + own_step).to(tl.float32)
        b0, b1 = tl.load(b).to(tl.float32), tl.load(b + other_step).to(tl.float32)
        r0, r1 = reciprocals(denominator(a0, b0, MODE), denominator(a1, b1, MODE), FAST)
        s0 = sum_own(change * slope(r0, b0, MODE), BM, BN) * slope_scale(a0, MODE)[:, None]
        s1 = sum_own(change * slope(r1, b1, MODE), BM, BN) * slope_scale(a1, MODE)[:, None]
        new = new + (sums[2 * pair] + s0, sums[2 * pair + 1] + s1)
        if WEIGHTED:
            t0 = tanh_sum(change, whole, r0, a0, b0, MODE, BM, BN)
            t1 = tanh_sum(change, whole, r1, a1, b1, MODE, BM, BN)
            new_weights = new_weights + (weight_sums[2 * pair] + t0, weight_sums[2 * pair + 1] + t1)
    return new, new_weights


@triton.jit
def pull_tokens(
    own, other, own_exps, other_exps, own_tanhs, other_tanhs, own_reach, other_reach, own_flags, other_flags,
    alone, slope_alone, weight, changes, change_scale, grad, grad_weight,
    first_batch, first_own, first_other, inner, own_count, other_count, own_rows, other_rows, own_blocks, chunks,
    own_columns, other_columns, element_step, own_step, other_step, band,
    REACH: tl.constexpr, CELLS: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, WEIGHTED: tl.constexpr,
    PATCH: tl.constexpr, ADD: tl.constexpr, FAST: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients (batch, own_count, UNITS) of BM own tokens in CHUNK hidden units, and of the weights there if WEIGHTED.

    changes: the slab, with the steps from one element, own token and other token to the next. PATCH: only tiles of a
    flagged block, less what the tables alone and slope_alone of the lift gave them already. ADD: to
    what is there, from other slabs or from the lift.
    band: of the offset other - own.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    element, block = program // own_blocks, program % own_blocks
    batch = first_batch + element
    m0 = first_own + block * BM
    m = m0 + tl.arange(0, BM)
    unit = (chunk * CHUNK).to(tl.int64)
    # Sums begin in the layout in which they are added to.
    patched = sum_own(empty_tile(BM, BN), BM, BN)
    sums, weight_sums = (), ()
    for _ in tl.static_range(CHUNK):
        sums = sums + (patched,)
        if WEIGHTED:
            weight_sums = weight_sums + (patched,)
    lines = changes + element.to(tl.int64) * element_step + (m - first_own).to(tl.int64) * own_step
    raw = start(own, batch, inner) + tl.minimum(m, own_count - 1).to(tl.int64) * own[3] + unit * own[4]
    own_flagged = 0
    far = 0.0
    facing_flags = start(other_flags, batch, inner) + first_other // BLOCK
    if PATCH:
        own_flagged = tl.load(start(own_flags, batch, inner) + m0 // BLOCK)
        if own_flagged + any_flag(facing_flags, tl.cdiv(other_rows, BLOCK), 128) == 0:
            return
    else:
        far = tl.load(start(own_reach, batch, inner) + m0 // BLOCK)
    for first in range(0, other_rows, BN):
        n0 = first_other + first
        n = n0 + tl.arange(0, BN)
        skipped = is_outside(n0 - (m0 + BM - 1), n0 + BN - 1 - m0, band)
        if PATCH:
            skipped |= own_flagged + tl.load(facing_flags + first // BLOCK) == 0
        if not skipped:
            line = (first + tl.arange(0, BN)).to(tl.int64)[None, :] * other_step
            change = empty_tile(BM, BN) + tl.load(lines[:, None] + line).to(tl.float32)
            last = tl.minimum(n, other_count - 1).to(tl.int64)
            facing = start(other, batch, inner) + last * other[3] + unit * other[4]
            if PATCH:
                patched += sum_own(change, BM, BN)
                sums, weight_sums = add_tile(
                    sums, weight_sums, change, raw, facing, own[4], other[4],
                    CHUNK, DIRECT, WEIGHTED, FAST, BM, BN,
                )  # fmt: skip
            else:
                near = tl.load(start(other_reach, batch, inner) + n0 // BLOCK)
                if (far <= NEAR) & (near <= NEAR):
                    sums, weight_sums = add_tile(
                        sums, weight_sums, change, start(own_tanhs, batch, inner) + unit * own_columns + m,
                        start(other_tanhs, batch, inner) + unit * other_columns + n, own_columns, other_columns,
                        CHUNK, SUM, WEIGHTED, FAST, BM, BN,
                    )  # fmt: skip
                elif far + near <= PLAIN_REACH:
                    sums, weight_sums = add_tile(
                        sums, weight_sums, change, start(own_exps, batch, inner) + unit * own_columns + m,
                        start(other_exps, batch, inner) + unit * other_columns + n, own_columns, other_columns,
                        CHUNK, PLAIN, WEIGHTED, FAST, BM, BN,
                    )  # fmt: skip
                elif (far <= CAPPED_REACH) & (near <= CAPPED_REACH):
                    sums, weight_sums = add_tile(
                        sums, weight_sums, change, start(own_exps, batch, inner) + unit * own_columns + m,
                        start(other_exps, batch, inner) + unit * other_columns + n, own_columns, other_columns,
                        CHUNK, CAPPED, WEIGHTED, FAST, BM, BN,
                    )  # fmt: skip
                else:
                    sums, weight_sums = add_tile(
                        sums, weight_sums, change, raw, facing, own[4], other[4],
                        CHUNK, DIRECT, WEIGHTED, FAST, BM, BN,
                    )  # fmt: skip
    shrink = 1.0 / tl.load(change_scale)
    to = (batch.to(tl.int64) * own_count + m) * UNITS + unit
    exists = m < own_count
    weight = start(weight, batch, inner) + unit
    given = tl.where(own_flagged == 0, tl.sum(patched, 1), 0.0)
    for u in tl.static_range(CHUNK):
        total = tl.sum(sums[u], 1)
        of_weight = tl.zeros([BM], tl.float32)
        if WEIGHTED:
            of_weight += tl.sum(weight_sums[u], 1)
        if PATCH:
            a = tl.load(raw + u * own[4]).to(tl.float32)
            cell, part = cell_of(within(a, REACH), REACH, CELLS)
            total -= between(slope_alone, cell, part, 1) * given
            of_weight -= between(alone, cell, part, 1) * given
        total *= tl.load(weight + u) * shrink
        if ADD:
            total += tl.load(grad + to + u, mask=exists, other=0.0)
        tl.store(grad + to + u, total, mask=exists)
        if WEIGHTED or PATCH:
            of_weight *= shrink
            if ADD:
                of_weight += tl.load(grad_weight + to + u, mask=exists, other=0.0)
            tl.store(grad_weight + to + u, of_weight, mask=exists)
