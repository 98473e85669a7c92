"""What the backward pass knows of whole rows before it looks at pairs: their means, and how large a change can be.

Plain operations would be a dozen small launches, which a short call waits for.
"""
# ruff: noqa: N803 - Triton's dialect: capital constants

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY


@triton.jit
def measure_rows(
    grad_output, output, log_mass, grad_log_mass, means, norms, own, rows,
    VALUE_DIM: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Of BR rows the means dO'o - dlog_mass, the norms |dO|, and dlog_mass itself, 0 where a row has no keys.

    grad_output, output: (rows, VALUE_DIM); all others: (rows), of all batch elements.
    """
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    line = r.to(tl.int64)[:, None] * VALUE_DIM
    product, square = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32)
    for first in range(0, VALUE_DIM, BV):
        v = first + tl.arange(0, BV)
        real = (r < rows)[:, None] & (v < VALUE_DIM)[None, :]
        grad = tl.load(grad_output + line + v[None, :], mask=real, other=0.0).to(tl.float32)
        pooled = tl.load(output + line + v[None, :], mask=real, other=0.0).to(tl.float32)
        product += tl.sum(grad * pooled, 1)
        square += tl.sum(grad * grad, 1)
    # A row without keys is minus infinity whatever the tokens are.
    alive = tl.load(log_mass + r, mask=r < rows, other=0.0) != -INFINITY
    change = tl.where(alive, tl.load(grad_log_mass + r, mask=r < rows, other=0.0).to(tl.float32), 0.0)
    tl.store(means + r, product - change, mask=r < rows)
    tl.store(norms + r, tl.sqrt(square), mask=r < rows)
    tl.store(own + r, change, mask=r < rows)


@triton.jit
def largest_of(numbers, count, BLOCK: tl.constexpr):
    """The largest |number|."""
    found = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        found = tl.maximum(found, tl.abs(tl.load(numbers + at, mask=at < count, other=0.0)))
    return tl.max(found, 0)


@triton.jit
def choose_scale(norms, value_norms, own, scale, rows, tokens, kept, BLOCK: tl.constexpr):
    """The power of two that brings changes near to the largest half precision: at most 2^15 after scaling.

    |dS| <= 2 max|dO| max|v| / (1 - dropout) + |dlog_mass|; kept: 1 - dropout. The rest of them is far from 0.
    """
    most = 2.0 * largest_of(norms, rows, BLOCK) * largest_of(value_norms, tokens, BLOCK) / kept
    most = tl.maximum(most + largest_of(own, rows, BLOCK), 1.3552527156068805e-20)  # 2^-66
    exponent = (most.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # The bits of 2^(14 - e), where `most` is at least 2^e: exponents count from 127.
    tl.store(scale, ((268 - exponent) << 23).to(tl.float32, bitcast=True))
