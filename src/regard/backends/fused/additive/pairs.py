"""A score of each pair without a tanh of its own, inside a kernel: four hidden units share one reciprocal (eq. 12).

With u = e^2a and v = e^2b, tanh(a + b) = 1 - 2 / (1 + uv); with s = tanh a and t = tanh b it is (s + t) / (1 + st).
The functions of one token are computed once (`columns`); a pair costs a product and a share in a reciprocal, because
n1/d1 + n2/d2 = (n1 d2 + n2 d1) / (d1 d2). MODE says what a tile of pairs can take, by the largest |a| and |b| in it:

    SUM      both up to 1: the addition formula, as exact as tanh near 0
    PLAIN    uv up to 2^30 everywhere: four factors 1 + uv have a finite product
    CAPPED   e^2a and e^2b are finite: 1 + uv is cut at 2^30, which moves a tanh by 2^-29
    DIRECT   anything else: e^2(a + b) for each pair, cut likewise; NaN stays NaN
"""
# ruff: noqa: N803, SIM108 - Triton's dialect: capital constants, one type in both arms of a constant's `if`

import triton
import triton.language as tl

SUM, PLAIN, CAPPED, DIRECT = (tl.constexpr(mode) for mode in range(4))
NEAR = tl.constexpr(1.0)
PLAIN_REACH = tl.constexpr(10.39)  # 2 (a + b) log2(e) <= 30
CAPPED_REACH = tl.constexpr(43.0)
CAP = tl.constexpr(2.0**30)
TWICE_LOG2E = tl.constexpr(2.8853900817779268)


@triton.jit
def inverse(x, FAST: tl.constexpr):
    """1 / x to the last bit or two; FAST: by the instruction, which Triton's interpreter does not know."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = 1.0 / x
    return result


@triton.jit
def empty_tile(BM: tl.constexpr, BN: tl.constexpr):
    """Zeros (BM, BN) in the layout of the matrix units, because they are an empty product.

    There a thread has 2 x 16 of 64 x 64 pairs and loads 10 numbers for the 32 pairs of a unit; in a plain layout it
    would have one column, and load 33.
    """
    return tl.dot(tl.zeros([BM, 16], tl.float16), tl.zeros([16, BN], tl.float16))


@triton.jit
def denominator(a, b, MODE: tl.constexpr):
    """1 + uv, or 1 + st: (BM,) and (BN,) numbers of one hidden unit to (BM, BN)."""
    if MODE == DIRECT:
        d = tl.minimum(tl.exp2((a[:, None] + b[None, :]) * TWICE_LOG2E) + 1.0, CAP, propagate_nan=tl.PropagateNan.ALL)
    elif MODE == CAPPED:
        d = tl.minimum(a[:, None] * b[None, :] + 1.0, CAP)
    else:
        d = a[:, None] * b[None, :] + 1.0
    return d


@triton.jit
def numerator(a, b, weight, MODE: tl.constexpr):
    """What stands over the denominator: -2 w, or w (s + t)."""
    if MODE == SUM:
        n = (weight * a)[:, None] + weight * b[None, :]
    else:
        n = -2.0 * weight
    return n


@triton.jit
def fractions(a0, b0, w0, a1, b1, w1, MODE: tl.constexpr):
    """Two hidden units over one denominator."""
    d0, d1 = denominator(a0, b0, MODE), denominator(a1, b1, MODE)
    return numerator(a0, b0, w0, MODE) * d1 + numerator(a1, b1, w1, MODE) * d0, d0 * d1


@triton.jit
def scores_of(query, key, weight, query_step, key_step, UNITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
              MODE: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """w' tanh(a + b) for a tile (BM, BN).

    query, key: pointers (BM,) and (BN,) to the first unit of the tokens, of a, e^2a or tanh a as MODE wants; a step
    leads to the next unit. UNITS is a multiple of 4.
    """
    total = empty_tile(BM, BN)
    for unit in range(0, UNITS, 4):
        a, b, w = query + unit * query_step, key + unit * key_step, weight + unit
        w0, w1, w2, w3 = tl.load(w), tl.load(w + 1), tl.load(w + 2), tl.load(w + 3)
        a0, a1 = tl.load(a).to(tl.float32), tl.load(a + query_step).to(tl.float32)
        b0, b1 = tl.load(b).to(tl.float32), tl.load(b + key_step).to(tl.float32)
        n01, d01 = fractions(a0, b0, w0, a1, b1, w1, MODE)
        a2, a3 = tl.load(a + 2 * query_step).to(tl.float32), tl.load(a + 3 * query_step).to(tl.float32)
        b2, b3 = tl.load(b + 2 * key_step).to(tl.float32), tl.load(b + 3 * key_step).to(tl.float32)
        n23, d23 = fractions(a2, b2, w2, a3, b3, w3, MODE)
        share = (n01 * d23 + n23 * d01) * inverse(d01 * d23, FAST)
        if MODE == SUM:
            total += share
        else:
            # The whole of these units, so that the running sum is a score and not the long way round.
            total += share + ((w0 + w1) + (w2 + w3))
    return total


@triton.jit
def reciprocals(d0, d1, FAST: tl.constexpr):
    """1/d of two units by one reciprocal."""
    r = inverse(d0 * d1, FAST)
    return r * d1, r * d0


@triton.jit
def slope(r, b, MODE: tl.constexpr):
    """1 - tanh^2 up to the factor of the own token in `slope_scale`, from r = 1 / denominator."""
    if MODE == SUM:
        result = r * r * (1.0 - b * b)[None, :]
    else:
        result = r - r * r
    return result


@triton.jit
def slope_scale(a, MODE: tl.constexpr):
    """The factor of `slope` that belongs to the own token: 1 - tanh^2 a, or 4."""
    if MODE == SUM:
        result = 1.0 - a * a
    else:
        result = tl.zeros_like(a) + 4.0
    return result
