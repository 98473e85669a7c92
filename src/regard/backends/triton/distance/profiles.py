"""The radial kernels f inside Triton kernels: value, logarithm, weight and slope from squared distances (eq. 5).

PROFILE is the name of a radial kernel (`scores/kernels.py`). Logarithms are to base 2, for which a GPU has an
instruction. Three numbers give the width of a row:

                                all but the boxcar                        boxcar
    width in `inputs.Inputs`    the width                                 the largest squared distance inside
    scale, by `row_parameter`   1 / width                                 the same
    factor, by `squared_factor` 1 / width^2, times a number that makes    the same
                                the score of an exponential base 2

A NaN distance gives a NaN value and a NaN logarithm. All conditions test whether a pair is outside the support, which
is False for NaN.
"""
# ruff: noqa: N803, SIM108 - Triton: capital names for constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.triton.primitives import INFINITY, LOG2E

HALF_PI = tl.constexpr(1.5707963267948966)
# Terms below 2^-126 become 0. The sum of 2^40 such terms is negligible beside this mass.
MIN_MASS = tl.constexpr(2.0**-60)
# A scale between 1 / MAX_SCALE and MAX_SCALE has a square that is a normal number, as `squared_factor` needs.
MAX_SCALE = tl.constexpr(2.0**40)


@triton.jit
def row_parameter(width, m, queries, PROFILE: tl.constexpr, PER_QUERY: tl.constexpr, BM: tl.constexpr):
    """Return the `scale` of BM rows: 1 / width, or for a boxcar the stored number."""
    if PER_QUERY:
        scale = tl.load(width + m, mask=m < queries, other=1.0)
    else:
        scale = tl.load(width) + tl.zeros([BM], tl.float32)
    if PROFILE != "boxcar":
        scale = 1.0 / scale
    return scale


@triton.jit
def squared_factor(scale, PROFILE: tl.constexpr):
    """Return the factor of squared distances in `kernel_value`.

    scale: `row_parameter` of the row.
    """
    if PROFILE == "gaussian":
        factor = 0.5 * LOG2E * scale * scale
    elif PROFILE == "squared_distance":
        factor = LOG2E * scale * scale
    elif PROFILE == "laplacian":
        factor = LOG2E * LOG2E * scale * scale
    elif PROFILE == "boxcar":
        factor = scale
    else:
        factor = scale * scale
    return factor


@triton.jit
def kernel_value(squared, factor, bias, PROFILE: tl.constexpr):
    """Return f times exp2(bias); the logarithm of a compact kernel is not needed.

    factor: `squared_factor` of the row; the square of the row's scale must be a normal number.
    """
    if PROFILE == "gaussian" or PROFILE == "squared_distance":
        result = tl.exp2(bias - squared * factor)
    elif PROFILE == "laplacian":
        result = tl.exp2(bias - tl.sqrt(squared * factor))
    elif PROFILE == "boxcar":
        result = tl.where(squared > factor, 0.0, tl.exp2(bias) + _zero_or_nan(squared))
    else:
        result = _compact_value(squared * factor, PROFILE) * tl.exp2(bias)
    return result


@triton.jit
def log_kernel(squared, scale, PROFILE: tl.constexpr):
    """Return log2 f, minus infinity outside the support."""
    if PROFILE == "boxcar":
        result = tl.where(squared > scale, -INFINITY, _zero_or_nan(squared))
    else:
        result = _log_of_ratio((squared * scale) * scale, PROFILE)
    return result


@triton.jit
def weight_and_slope(squared, scale, bias, peak, PROFILE: tl.constexpr):
    """Return f times exp2(bias - peak), its derivative with respect to z = squared / width^2, and z."""
    if PROFILE == "boxcar":
        weight = tl.where(squared > scale, 0.0, tl.exp2(bias - peak) + _zero_or_nan(squared))
        slope = weight * 0.0
        z = weight * 0.0
    else:
        z = (squared * scale) * scale
        if PROFILE == "gaussian" or PROFILE == "squared_distance" or PROFILE == "laplacian":
            # The score is rounded as in the forward pass, which found the peak: far from all keys, the rounding of a
            # score is larger than 1.
            exponent = (_log_of_ratio(z, PROFILE) + bias) - peak
            weight = tl.exp2(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
            if PROFILE == "gaussian":
                slope = -0.5 * weight
            elif PROFILE == "squared_distance":
                slope = -weight
            else:
                slope = tl.where(z <= 0, 0.0, -0.5 * weight / tl.sqrt(tl.where(z <= 0, 1.0, z)))
        else:
            bias_factor = tl.exp2(bias - peak)
            weight = _compact_value(z, PROFILE) * bias_factor
            slope = tl.where(weight <= 0, 0.0, _compact_derivative(tl.where(z >= 1, 0.0, z), PROFILE) * bias_factor)
    return weight, slope, z


@triton.jit
def per_squared_distance(d_z, scale, PROFILE: tl.constexpr):
    """Return the derivative with respect to the squared distance from the derivative with respect to z.

    It is 0 for a boxcar, whose scale is not 1 / width.
    """
    if PROFILE == "boxcar":
        result = d_z * 0.0
    else:
        result = (d_z * scale) * scale
    return result


@triton.jit
def _log_of_ratio(z, PROFILE: tl.constexpr):
    """Return log2 f as a function of z = squared / width^2."""
    if PROFILE == "gaussian":
        result = (-0.5 * LOG2E) * z
    elif PROFILE == "squared_distance":
        result = -LOG2E * z
    elif PROFILE == "laplacian":
        result = -LOG2E * tl.sqrt(z)
    else:
        value = _compact_value(z, PROFILE)
        result = tl.where(value <= 0, -INFINITY, tl.log2(tl.where(value <= 0, 1.0, value)))
    # The result is never above 0. The minimum only keeps the compiler from fusing the product with a later addition,
    # which would round differently.
    return tl.minimum(result, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _zero_or_nan(squared):
    """Return 0, or NaN where a squared distance is NaN."""
    return tl.minimum(squared, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _compact_value(z, PROFILE: tl.constexpr):
    """Return f of a compact kernel, 0 for z >= 1."""
    is_outside = z >= 1
    z = tl.where(is_outside, 0.0, z)
    if PROFILE == "triangular":
        value = 1.0 - tl.sqrt(z)
    elif PROFILE == "epanechnikov":
        value = 1.0 - z
    elif PROFILE == "biweight":
        value = (1.0 - z) * (1.0 - z)
    elif PROFILE == "tricube":
        base = 1.0 - z * tl.sqrt(z)
        value = base * base * base
    else:
        tl.static_assert(PROFILE == "cosine_kernel", "not a radial kernel")
        angle = HALF_PI * (1.0 - tl.sqrt(z))
        value = angle * _sine_ratio(angle * angle)
    return tl.where(is_outside, 0.0, tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _compact_derivative(z, PROFILE: tl.constexpr):
    """Return f'(z) of a compact kernel for z in [0, 1), and 0 where f has a kink."""
    if PROFILE == "triangular":
        slope = tl.where(z <= 0, 0.0, -0.5 / tl.sqrt(tl.where(z <= 0, 1.0, z)))
    elif PROFILE == "epanechnikov":
        slope = z * 0.0 - 1.0
    elif PROFILE == "biweight":
        slope = -2.0 * (1.0 - z)
    elif PROFILE == "tricube":
        root = tl.sqrt(z)
        base = 1.0 - z * root
        slope = -4.5 * root * base * base
    else:
        slope = (-0.5 * HALF_PI * HALF_PI) * _sine_ratio(HALF_PI * HALF_PI * z)
    return slope


@triton.jit
def _sine_ratio(square):
    """Return sin(x) / x from x^2, by its Taylor series; for x up to pi / 2 the first omitted term is below 1e-9."""
    result = 1.0 / 6227020800.0
    result = result * square - 1.0 / 39916800.0
    result = result * square + 1.0 / 362880.0
    result = result * square - 1.0 / 5040.0
    result = result * square + 1.0 / 120.0
    result = result * square - 1.0 / 6.0
    return result * square + 1.0
