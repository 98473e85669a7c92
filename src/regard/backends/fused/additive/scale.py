"""A power of two that brings the weights of additive attention near 1, where half precision is at its best."""
# ruff: noqa: N803 - Triton's dialect: capital constants

import triton
import triton.language as tl


@triton.jit
def scale_of(weight, UNITS: tl.constexpr, PADDED: tl.constexpr):
    """2^-k, so that the largest |w| times it lies in [1/2, 1); 1 where that is not a normal number.

    weight: a pointer to UNITS weights; PADDED: the next power of two.
    """
    h = tl.arange(0, PADDED)
    largest = tl.max(tl.abs(tl.load(weight + h, mask=h < UNITS, other=0.0)), 0)
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # The bits of 2^-k: exponents count from 127.
    opposite = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where((exponent > 0) & (exponent < 253), opposite, 1.0)
