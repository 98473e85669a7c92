"""The functions of one token that exact scores need: e^2a and tanh a by hidden unit, and how far |a| reaches.

Columns: (units, tokens) for each batch element, so that a run of tokens is a run of memory; tokens are padded to whole
blocks with a = 0.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants

import triton
import triton.language as tl

from regard.backends.fused.tiles import start

LOG2E_HEAD, LOG2E_REST = tl.constexpr(2.885390043258667), tl.constexpr(3.85192597818218e-08)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exponential(a):
    """e^2a to a few units of the last place: what 2 a log2(e) loses by rounding is made up for."""
    power = a * LOG2E_HEAD
    lost = tl.fma(a, LOG2E_HEAD, -power) + a * LOG2E_REST
    return tl.exp2(power) * (1.0 + lost * LN2)


@triton.jit
def tanh_near_0(a):
    """tanh a for |a| <= 1 by Lambert's continued fraction, relative to its size; elsewhere of no use."""
    z = a * a
    return a / (1.0 + z / (3.0 + z / (5.0 + z / (7.0 + z / (9.0 + z / (11.0 + z / 13.0))))))


@triton.jit
def expand_tokens(
    tokens, exps, tanhs, reach, inner, count, columns, blocks,
    UNITS: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Columns of BT tokens, and the largest |a| among them in every unit, NaN if one is.

    tokens: an operand with the strides of its tokens and units; exps, tanhs: (batch, UNITS, columns); reach:
    (batch, blocks). inner: that of the tokens' own batch axes.
    """
    batch, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    t = block * BT + tl.arange(0, BT)
    source = start(tokens, batch, inner) + t.to(tl.int64)[:, None] * tokens[3]
    first = batch.to(tl.int64) * UNITS * columns
    farthest, nothing = 0.0, 0.0
    for unit in range(0, UNITS, BU):
        u = unit + tl.arange(0, BU)
        real = (t < count)[:, None] & (u < UNITS)[None, :]
        a = tl.load(source + u[None, :] * tokens[4], mask=real, other=0.0).to(tl.float32)
        place = first + u[None, :].to(tl.int64) * columns + t[:, None]
        tl.store(exps + place, exponential(a), mask=(u < UNITS)[None, :])
        tl.store(tanhs + place, tanh_near_0(a), mask=(u < UNITS)[None, :])
        farthest = tl.maximum(farthest, tl.max(tl.max(tl.abs(a), 1), 0))
        nothing += tl.sum(tl.sum(a * 0.0, 1), 0)  # NaN where a token is not finite, which a maximum may lose
    tl.store(reach + tl.program_id(0), farthest + nothing)
