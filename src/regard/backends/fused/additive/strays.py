"""What the lift lacks for strays, activations beyond its range: the rest of each, added to scores and to gradients.

A stray enters the features at the end of the range. With ã for that, and ã = a within, a pair lacks
w_h (tanh(a_h + b_h) - tanh(ã_h + b̃_h)) of its score, and likewise of its derivative: 0 but where a or b is a stray of
the same unit. Where both are, the pair is counted with one of them.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.additive.features import is_inside, within
from regard.backends.fused.additive.pairs import TWICE_LOG2E
from regard.backends.fused.additive.scale import scale_of
from regard.backends.fused.tiles import start


@triton.jit
def rest_of(x):
    """r = 1 / (1 + e^2x): tanh x is 1 - 2 r, and sech² x is 4 r (1 - r)."""
    return 1.0 / (1.0 + tl.exp2(x * TWICE_LOG2E))


@triton.jit
def value_gap(a, b, REACH: tl.constexpr, OTHER_REACH: tl.constexpr):
    """tanh(a + b) - tanh(ã + b̃)."""
    return 2.0 * (rest_of(within(a, REACH) + within(b, OTHER_REACH)) - rest_of(a + b))


@triton.jit
def slope_gap(a, b, REACH: tl.constexpr, OTHER_REACH: tl.constexpr):
    """sech²(a + b) - sech²(ã + b̃)."""
    true, near = rest_of(a + b), rest_of(within(a, REACH) + within(b, OTHER_REACH))
    return 4.0 * ((true - true * true) - (near - near * near))


@triton.jit
def is_lifted(flags, token, count, BLOCK: tl.constexpr):
    """Whether tokens exist and stand in a block that is not flagged, whose tiles are exact."""
    return tl.load(flags + token // BLOCK, mask=token < count, other=1) == 0


@triton.jit
def add_strays(
    own, other, numbers, strays, other_flags, weight, slab,
    first_batch, first_own, first_other, inner, own_rows, other_rows, other_count, spans,
    element_step, own_step, other_step,
    REACH: tl.constexpr, OTHER_REACH: tl.constexpr, ALL: tl.constexpr, UNITS: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add to the slab's scores what the strays of BM own tokens lack against BN others.

    numbers, strays: what `lift_tokens` writes. ALL: against other strays too; either side alone may do that. The
    slab's steps lead from one element, own token and other token to the next; tiles of flagged blocks are exact.
    """
    program = tl.program_id(0)
    own_blocks = own_rows // BM
    element, block, span = program // spans // own_blocks, program // spans % own_blocks, program % spans
    batch = first_batch + element
    m0 = first_own + block * BM
    t = tl.arange(0, BM)
    number = tl.load(start(numbers, batch, inner) + m0 + t)
    left = tl.sum((number > 0).to(tl.int32), 0)
    if left == 0:
        return
    strays = start(strays, batch, inner) + m0.to(tl.int64) * UNITS
    weight = start(weight, batch, inner)
    scale = scale_of(weight, UNITS, PADDED)
    line = span * BN + tl.arange(0, BN)
    n = first_other + line
    real = (line < other_rows) & is_lifted(start(other_flags, batch, inner), n, other_count, BLOCK)
    tokens = start(own, batch, inner) + m0.to(tl.int64) * own[3]
    facing = start(other, batch, inner) + n.to(tl.int64) * other[3]
    to = slab + element.to(tl.int64) * element_step + (block * BM).to(tl.int64) * own_step
    to += line.to(tl.int64) * other_step
    # From one token with strays to the next in registers: looking for it in memory would take longer than all the rest.
    for _ in range(left):
        token = tl.min(tl.where(number > 0, t, BM), 0)
        at = to + token.to(tl.int64) * own_step
        before = tl.load(at, mask=real, other=0.0)
        lacking = tl.zeros([BN], tl.float32)
        for place in range(tl.sum(tl.where(t == token, number, 0), 0)):
            unit = tl.load(strays + token * UNITS + place).to(tl.int64)
            a = tl.load(tokens + token.to(tl.int64) * own[3] + unit * own[4]).to(tl.float32)
            b = tl.load(facing + unit * other[4], mask=real, other=0.0).to(tl.float32)
            gap = value_gap(a, b, REACH, OTHER_REACH)
            if not ALL:
                gap = tl.where(is_inside(b, OTHER_REACH), gap, 0.0)
            lacking += tl.load(weight + unit) * gap
        tl.store(at, before + lacking * scale, mask=real)
        number = tl.where(t == token, 0, number)


@triton.jit
def list_strays(
    tokens, flags, numbers, places, inner, count, columns, blocks,
    REACH: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The strays of BU units, token by token, without those of flagged blocks.

    numbers: (batch, UNITS), how many; places: (batch, UNITS, columns), their tokens.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    u = block * BU + tl.arange(0, BU)
    source = start(tokens, batch, inner) + u.to(tl.int64)[None, :] * tokens[4]
    flags = start(flags, batch, inner)
    to = places + (batch.to(tl.int64) * UNITS + u)[None, :] * columns
    found = tl.zeros([BU], tl.int32)
    for first in range(0, count, BT):
        t = first + tl.arange(0, BT)
        real = (t < count)[:, None] & (u < UNITS)[None, :]
        a = tl.load(source + t.to(tl.int64)[:, None] * tokens[3], mask=real, other=0.0).to(tl.float32)
        is_stray = tl.where(is_lifted(flags, t, count, BLOCK)[:, None] & ~is_inside(a, REACH), 1, 0)
        place = found[None, :] + tl.cumsum(is_stray, 0) - 1
        tl.store(to + place, tl.broadcast_to(t[:, None], [BT, BU]), mask=is_stray == 1)
        found += tl.sum(is_stray, 0)
    tl.store(numbers + batch * UNITS + u, found, mask=u < UNITS)


@triton.jit
def pull_strays(
    own, other, own_numbers, own_places, other_numbers, other_places, own_flags, other_flags,
    weight, changes, change_scale, grad, grad_weight,
    first_batch, first_own, first_other, inner, own_count, other_count, own_rows, other_rows, chunks,
    own_columns, other_columns, element_step, own_step, other_step,
    REACH: tl.constexpr, OTHER_REACH: tl.constexpr, UNITS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of one unit of BM own tokens what its strays lack, on either side.

    numbers, places: what `list_strays` writes. grad: (batch, own_count, UNITS); WEIGHTED: grad_weight too, whose sum
    over tokens counts.
    """
    program = tl.program_id(0)
    chunk, program = program % chunks, program // chunks
    unit, element = program % UNITS, program // UNITS
    batch = first_batch + element
    own_number = tl.load(start(own_numbers, batch, inner) + unit)
    other_number = tl.load(start(other_numbers, batch, inner) + unit)
    if own_number + other_number == 0:
        return
    line = chunk * BM + tl.arange(0, BM)
    m = first_own + line
    exists = (line < own_rows) & is_lifted(start(own_flags, batch, inner), m, own_count, BLOCK)
    tokens = start(own, batch, inner) + unit.to(tl.int64) * own[4]
    facing = start(other, batch, inner) + unit.to(tl.int64) * other[4]
    a = tl.load(tokens + m.to(tl.int64) * own[3], mask=exists, other=0.0).to(tl.float32)
    changes += element.to(tl.int64) * element_step
    total, of_weight = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    # Strays of the other side, against all of these tokens.
    listed = start(other_places, batch, inner) + unit.to(tl.int64) * other_columns
    for place in range(other_number):
        n = tl.load(listed + place)
        row = n - first_other
        if (row >= 0) & (row < other_rows):
            b = tl.load(facing + n.to(tl.int64) * other[3]).to(tl.float32)
            at = changes + row.to(tl.int64) * other_step + line.to(tl.int64) * own_step
            change = tl.load(at, mask=exists, other=0.0).to(tl.float32)
            total += change * slope_gap(a, b, REACH, OTHER_REACH)
            if WEIGHTED:
                of_weight += change * value_gap(a, b, REACH, OTHER_REACH)
    # Strays of this side, against what is no stray.
    changed = other_number
    listed = start(own_places, batch, inner) + unit.to(tl.int64) * own_columns
    for place in range(own_number):
        t = tl.load(listed + place)
        row = t - first_own
        if (row >= chunk * BM) & (row < tl.minimum(chunk * BM + BM, own_rows)):
            stray = tl.load(tokens + t.to(tl.int64) * own[3]).to(tl.float32)
            slopes, values = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
            for first in range(0, other_rows, BN):
                lane = first + tl.arange(0, BN)
                n = first_other + lane
                real = (lane < other_rows) & is_lifted(start(other_flags, batch, inner), n, other_count, BLOCK)
                b = tl.load(facing + n.to(tl.int64) * other[3], mask=real, other=0.0).to(tl.float32)
                real &= is_inside(b, OTHER_REACH)
                at = changes + row.to(tl.int64) * own_step + lane.to(tl.int64) * other_step
                change = tl.load(at, mask=real, other=0.0).to(tl.float32)
                slopes += change * slope_gap(stray, b, REACH, OTHER_REACH)
                if WEIGHTED:
                    values += change * value_gap(stray, b, REACH, OTHER_REACH)
            changed += 1
            total += tl.where(line == row, tl.sum(slopes, 0), 0.0)
            of_weight += tl.where(line == row, tl.sum(values, 0), 0.0)
    if changed == 0:
        return
    shrink = 1.0 / tl.load(change_scale)
    to = (batch.to(tl.int64) * own_count + m) * UNITS + unit
    factor = tl.load(start(weight, batch, inner) + unit) * shrink
    tl.store(grad + to, tl.load(grad + to, mask=exists, other=0.0) + total * factor, mask=exists)
    if WEIGHTED:
        at = (batch.to(tl.int64) * own_count + first_own + chunk * BM) * UNITS + unit
        whole = tl.sum(tl.where(exists, of_weight, 0.0), 0)
        tl.store(grad_weight + at, tl.load(grad_weight + at) + whole * shrink)
