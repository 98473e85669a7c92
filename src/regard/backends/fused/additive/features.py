"""The lift inside kernels: tokens to features of a wide dot product, and gradients of features back to tokens.

tanh(a + b) ~ f(a) + g(b) + sum_r phi_r(a) psi_r(b) (`lift`). A feature is read from a table by linear interpolation,
the query's is multiplied by the weight of its unit. Feature r of unit h stands in column h * RANK + r. An activation
beyond the range, a stray, is taken at the end of the range, and what that lacks is added elsewhere (`strays`); a block
full of them is left out, and its tiles are exact.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants

import triton
import triton.language as tl

from regard.backends.fused.additive.scale import scale_of
from regard.backends.fused.tiles import start


@triton.jit
def is_inside(a, REACH: tl.constexpr):
    """Whether an activation is no stray; NaN is one."""
    return tl.abs(a) <= REACH


@triton.jit
def within(a, REACH: tl.constexpr):
    """The activation of the range that is nearest to a; for NaN its lower end."""
    return tl.where(is_inside(a, REACH), a, tl.where(a > 0, REACH, -REACH))


@triton.jit
def cell_of(a, REACH: tl.constexpr, CELLS: tl.constexpr):
    """The cell of the table that holds a, and how far a is in it; |a| <= REACH."""
    place = (a + REACH) * (CELLS / (2 * REACH))
    cell = tl.minimum(place.to(tl.int32), CELLS - 1)
    return cell, place - cell.to(tl.float32)


@triton.jit
def between(table, cell, part, STEP: tl.constexpr):
    """Linear interpolation in a table at so many places; a step leads to the next cell."""
    low = tl.load(table + cell)
    return low + part * (tl.load(table + cell + STEP) - low)


@triton.jit
def rows_between(table, cell, part, r, RANK: tl.constexpr):
    """Linear interpolation in a table (CELLS + 1, RANK): (units, ranks), 0 beyond the last rank."""
    place = table + cell[:, None] * RANK + r[None, :]
    real = (r < RANK)[None, :]
    low = tl.load(place, mask=real, other=0.0)
    return low + part[:, None] * (tl.load(place + RANK, mask=real, other=0.0) - low)


@triton.jit
def count_strays(source, first, count, token_step, unit_step, REACH: tl.constexpr, UNITS: tl.constexpr,
                 PADDED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(BLOCK,): how many activations of each token are beyond the range, or NaN; 0 beyond the last token."""
    t, h = first + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    place = source + t.to(tl.int64)[:, None] * token_step + h.to(tl.int64)[None, :] * unit_step
    a = tl.load(place, mask=(t < count)[:, None] & (h < UNITS)[None, :], other=0.0).to(tl.float32)
    return tl.sum(tl.where(is_inside(a, REACH), 0, 1), 1)


@triton.jit
def store_run(row, table, part, factor, kept, real, RANK: tl.constexpr, RUN: tl.constexpr):
    """The features of RUN ranks, a power of two, behind those of the larger powers in RANK; none beyond the last."""
    r = RANK // (2 * RUN) * (2 * RUN) + tl.arange(0, RUN)
    low, high = table[:, None] + r[None, :], table[:, None] + RANK + r[None, :]
    some = real[:, None] & (r < RANK)[None, :]
    first = tl.load(low, mask=some, other=0.0)
    found = (first + part[:, None] * (tl.load(high, mask=some, other=0.0) - first)) * factor[:, None]
    tl.store(row[:, None] + r[None, :], tl.where(kept, found, 0.0).to(tl.float16), mask=some)


@triton.jit
def lift_tokens(
    tokens, weight, values, alone, features, sums, flags, numbers, strays, inner, count, columns, blocks,
    REACH: tl.constexpr, CELLS: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, UNITS: tl.constexpr,
    PADDED: tl.constexpr, WEIGHTED: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Features (batch, columns, UNITS * RANK) in half precision of BT tokens, 0 if their block has too many strays.

    sums: (batch, columns), what a token adds to its scores alone, w'f(a), or 0 likewise; flags: (batch, columns /
    BLOCK), 1 for a block with more than MOST strays: its tiles are exact. Of other blocks, numbers: (batch, columns),
    how many strays a token has, and strays: (batch, columns, UNITS), their units.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    weight = start(weight, batch, inner)
    source = start(tokens, batch, inner)
    first = block * BT // BLOCK * BLOCK
    number = count_strays(source, first, count, tokens[3], tokens[4], REACH, UNITS, PADDED, BLOCK)
    beyond = (tl.sum(number, 0) > MOST).to(tl.int32)
    if block * BT % BLOCK == 0:
        tl.store(flags + (batch * columns + first) // BLOCK, beyond)
    t = first + tl.arange(0, BLOCK)
    own = (t >= block * BT) & (t < block * BT + BT)
    number = tl.where(own, number * (1 - beyond), 0)
    tl.store(numbers + batch.to(tl.int64) * columns + t, number, mask=own)
    has_strays = tl.sum(number, 0) > 0
    h = tl.arange(0, PADDED)
    w = tl.load(weight + h, mask=h < UNITS, other=0.0)
    factor = w * scale_of(weight, UNITS, PADDED) if WEIGHTED else w * 0.0 + 1.0
    source += h.to(tl.int64) * tokens[4]
    at = batch.to(tl.int64) * columns
    for token in range(block * BT, block * BT + BT):
        kept = (token < count) & (beyond == 0)
        a = tl.load(source + tl.cast(token, tl.int64) * tokens[3], mask=(h < UNITS) & kept, other=0.0).to(tl.float32)
        if has_strays:
            is_stray = tl.where(is_inside(a, REACH), 0, 1)
            to = strays + (at + token) * UNITS + tl.cumsum(is_stray, 0) - 1
            tl.store(to, h.to(tl.int16), mask=is_stray == 1)
        cell, part = cell_of(within(a, REACH), REACH, CELLS)
        row = features + (at + token) * (UNITS * RANK) + h * RANK
        table = values + cell * RANK
        # Ranks in one run where few lanes are idle then, otherwise in runs of the powers of two in them.
        if 8 * RANK >= 7 * RANKS:
            store_run(row, table, part, factor, kept, h < UNITS, RANK, RANKS)
        else:
            for power in tl.static_range(6):
                if RANK & (32 >> power):
                    store_run(row, table, part, factor, kept, h < UNITS, RANK, 32 >> power)
        total = tl.sum(w * between(alone, cell, part, 1), 0)
        tl.store(sums + at + token, tl.where(kept, total, 0.0))


@triton.jit
def pull_features(
    tokens, weight, flags, values, alone, slopes, slope_alone, pulls, sums, change_scale, grad, grad_weight,
    inner, first_batch, first, count, rows, blocks,
    REACH: tl.constexpr, CELLS: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, UNITS: tl.constexpr,
    PADDED: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Gradients (batch, count, UNITS) of the slab's tokens and of their weights, by the other side's features.

    pulls: (elements, rows, UNITS * RANK), changes of the slab's scores times the other side's features; first: its
    first token. sums: (elements, rows), the changes alone. WEIGHTED: the queries, whose pulls lack the weight, and
    whose sums lack the scale and are (batch, count); the other side's pulls have the weight, scaled, and are added to
    what is there. A block with too many strays gets 0.
    """
    element, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    batch = first_batch + element
    h, r = tl.arange(0, PADDED), tl.arange(0, RANKS)
    real = h < UNITS
    weight = start(weight, batch, inner)
    w = tl.load(weight + h, mask=real, other=0.0)
    grow = tl.load(change_scale)
    shrink = 1.0 / grow
    source = start(tokens, batch, inner) + h.to(tl.int64) * tokens[4]
    kept = tl.load(start(flags, batch, inner) + (first + block * BT) // BLOCK) == 0
    for row in range(block * BT, tl.minimum(block * BT + BT, count - first)):
        t = first + row
        a = tl.load(source + tl.cast(t, tl.int64) * tokens[3], mask=real & kept, other=0.0).to(tl.float32)
        cell, part = cell_of(within(a, REACH), REACH, CELLS)
        at = element.to(tl.int64) * rows + row
        place = pulls + at * (UNITS * RANK) + h[:, None] * RANK + r[None, :]
        pull = tl.load(place, mask=real[:, None] & (r < RANK)[None, :], other=0.0).to(tl.float32)
        to = batch.to(tl.int64) * count + t
        change = tl.load(sums + to) * grow if WEIGHTED else tl.load(sums + at)
        own = tl.sum(rows_between(slopes, cell, part, r, RANK) * pull, 1)
        single = between(slope_alone, cell, part, 1) * change
        of_weight = between(alone, cell, part, 1) * change
        if WEIGHTED:
            own = (own + single) * w
            of_weight += tl.sum(rows_between(values, cell, part, r, RANK) * pull, 1)
        else:
            own = own / scale_of(weight, UNITS, PADDED) + single * w
        to = to * UNITS + h
        own, of_weight = tl.where(kept, own * shrink, 0.0), tl.where(kept, of_weight * shrink, 0.0)
        if not WEIGHTED:
            # Keys come last: exact tiles and strays of earlier slabs have added to theirs.
            own += tl.load(grad + to, mask=real, other=0.0)
            of_weight += tl.load(grad_weight + to, mask=real, other=0.0)
        tl.store(grad + to, own, mask=real)
        tl.store(grad_weight + to, of_weight, mask=real)
