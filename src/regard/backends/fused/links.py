"""The links inside a kernel: mass, logarithm, weight and slope from squared distances (eq. 5).

LINK is the name of the link. A row enters by one number of `scales`: 1 / width, and for a boxcar the largest
squared distance that counts as inside. Logarithms are to base 2, which is what a GPU has an instruction for.

A NaN distance gives a NaN mass and a NaN logarithm: conditions ask whether a pair is outside, which NaN is not.
"""
# ruff: noqa: N803, SIM108 - Triton's dialect: capital constants, tuples by +, no `and` with a constant

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
HALF_PI = tl.constexpr(1.5707963267948966)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def scales(width, m, queries, LINK: tl.constexpr, PER_QUERY: tl.constexpr, BM: tl.constexpr):
    """What the other functions take for each row of BM: 1 / width, or a boxcar's reach as it is."""
    if PER_QUERY:
        scale = tl.load(width + m, mask=m < queries, other=1.0)
    else:
        scale = tl.load(width) + tl.zeros([BM], tl.float32)
    if LINK != "boxcar":
        scale = 1.0 / scale
    return scale


@triton.jit
def per_squared(change, scale, LINK: tl.constexpr):
    """A derivative in z as one in the squared distance; a boxcar has none, and its scale is no 1 / width."""
    if LINK == "boxcar":
        result = change * 0.0
    else:
        result = (change * scale) * scale
    return result


@triton.jit
def mass(squared, factor, bias, LINK: tl.constexpr):
    """f times exp2(bias), without a detour through the logarithm of a compact kernel.

    factor: `factor_of` the row's scale; its square must be a normal number.
    """
    if LINK == "gaussian" or LINK == "squared_distance":
        result = tl.exp2(bias - squared * factor)
    elif LINK == "laplacian":
        result = tl.exp2(bias - tl.sqrt(squared * factor))
    elif LINK == "boxcar":
        result = tl.where(squared > factor, 0.0, tl.exp2(bias) + _zero(squared))
    else:
        result = _compact(squared * factor, LINK) * tl.exp2(bias)
    return result


@triton.jit
def factor_of(scale, LINK: tl.constexpr):
    """What `mass` multiplies squared distances by."""
    if LINK == "gaussian":
        factor = 0.5 * LOG2E * scale * scale
    elif LINK == "squared_distance":
        factor = LOG2E * scale * scale
    elif LINK == "laplacian":
        factor = LOG2E * LOG2E * scale * scale
    elif LINK == "boxcar":
        factor = scale
    else:
        factor = scale * scale
    return factor


@triton.jit
def log_kernel(squared, scale, LINK: tl.constexpr):
    """log2 f, minus infinity outside the support."""
    if LINK == "boxcar":
        result = tl.where(squared > scale, -INFINITY, _zero(squared))
    else:
        result = _log_of_ratio((squared * scale) * scale, LINK)
    return result


@triton.jit
def weight_and_pull(squared, scale, bias, peak, LINK: tl.constexpr):
    """f times exp2(bias - peak), its derivative in z = squared / width^2, and z."""
    if LINK == "boxcar":
        weight = tl.where(squared > scale, 0.0, tl.exp2(bias - peak) + _zero(squared))
        pull = weight * 0.0
        z = weight * 0.0
    else:
        z = (squared * scale) * scale
        if LINK == "gaussian" or LINK == "squared_distance" or LINK == "laplacian":
            # The score is rounded as it was when the peak was found: far away its rounding is larger than 1.
            exponent = (_log_of_ratio(z, LINK) + bias) - peak
            weight = tl.exp2(tl.minimum(exponent, 0.0, propagate_nan=tl.PropagateNan.ALL))
            if LINK == "gaussian":
                pull = -0.5 * weight
            elif LINK == "squared_distance":
                pull = -weight
            else:
                pull = tl.where(z <= 0, 0.0, -0.5 * weight / tl.sqrt(tl.where(z <= 0, 1.0, z)))
        else:
            common = tl.exp2(bias - peak)
            weight = _compact(z, LINK) * common
            pull = tl.where(weight <= 0, 0.0, _compact_derivative(tl.where(z >= 1, 0.0, z), LINK) * common)
    return weight, pull, z


@triton.jit
def _log_of_ratio(z, LINK: tl.constexpr):
    if LINK == "gaussian":
        result = (-0.5 * LOG2E) * z
    elif LINK == "squared_distance":
        result = -LOG2E * z
    elif LINK == "laplacian":
        result = -LOG2E * tl.sqrt(z)
    else:
        kernel = _compact(z, LINK)
        result = tl.where(kernel <= 0, -INFINITY, tl.log2(tl.where(kernel <= 0, 1.0, kernel)))
    # It is never above 0: this only keeps the product from being fused with a sum, which would round it otherwise.
    return tl.minimum(result, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _zero(squared):
    """0, or NaN where a squared distance is NaN."""
    return tl.minimum(squared, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _compact(z, LINK: tl.constexpr):
    """f(z), 0 from z = 1 on."""
    outside = z >= 1
    z = tl.where(outside, 0.0, z)
    if LINK == "triangular":
        kernel = 1.0 - tl.sqrt(z)
    elif LINK == "epanechnikov":
        kernel = 1.0 - z
    elif LINK == "biweight":
        kernel = (1.0 - z) * (1.0 - z)
    elif LINK == "tricube":
        base = 1.0 - z * tl.sqrt(z)
        kernel = base * base * base
    else:
        tl.static_assert(LINK == "cosine_kernel", "a link without a kernel")
        angle = HALF_PI * (1.0 - tl.sqrt(z))
        kernel = angle * _sine_ratio(angle * angle)
    return tl.where(outside, 0.0, tl.maximum(kernel, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _compact_derivative(z, LINK: tl.constexpr):
    """f'(z) for z in [0, 1), and 0 where f has a kink."""
    if LINK == "triangular":
        slope = tl.where(z <= 0, 0.0, -0.5 / tl.sqrt(tl.where(z <= 0, 1.0, z)))
    elif LINK == "epanechnikov":
        slope = z * 0.0 - 1.0
    elif LINK == "biweight":
        slope = -2.0 * (1.0 - z)
    elif LINK == "tricube":
        root = tl.sqrt(z)
        base = 1.0 - z * root
        slope = -4.5 * root * base * base
    else:
        slope = (-0.5 * HALF_PI * HALF_PI) * _sine_ratio(HALF_PI * HALF_PI * z)
    return slope


@triton.jit
def _sine_ratio(square):
    """sin(x) / x from x^2, by its series; the first term left out is below 1e-9 for x up to pi / 2."""
    result = 1.0 / 6227020800.0
    result = result * square - 1.0 / 39916800.0
    result = result * square + 1.0 / 362880.0
    result = result * square - 1.0 / 5040.0
    result = result * square + 1.0 / 120.0
    result = result * square - 1.0 / 6.0
    return result * square + 1.0
