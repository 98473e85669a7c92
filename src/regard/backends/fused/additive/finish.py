"""From what a slab holds to the scores of a tile: scale, bias and mask, and the weights that dropout keeps."""
# ruff: noqa: N803, SIM102 - Triton's dialect: capital constants, no `and` with a constant

import triton
import triton.language as tl

from regard.backends.fused.links import INFINITY, LOG2E
from regard.backends.fused.tiles import allows, crosses, start


@triton.jit
def finished(
    scores, m, n, batch, inner, m0, n0, keys, unscale, key_bias, bias, allowed, band,
    HAS_KEY_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BAND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Scores (BM, BN) to base 2 of the queries m and keys n, from those of the slab; minus infinity where forbidden.

    key_bias: (batch, columns), 0 and minus infinity or more; bias, allowed: operands with the strides of queries and
    keys, 0 where shared. m0, n0: the first query and key of the tile.
    """
    scores *= unscale
    real = n < keys
    if HAS_KEY_BIAS:
        # A hidden key has a bias of minus infinity, to which a NaN score must not be added.
        own = tl.load(start(key_bias, batch, inner) + n, mask=real, other=0.0)[None, :]
        scores = tl.where(own == -INFINITY, -INFINITY, scores + own)
    if HAS_BIAS:
        at = start(bias, batch, inner) + m.to(tl.int64)[:, None] * bias[3] + n.to(tl.int64)[None, :] * bias[4]
        scores += tl.load(at, mask=real[None, :], other=0.0).to(tl.float32)
    scores = tl.where(real[None, :], scores * LOG2E, -INFINITY)
    if HAS_MASK:
        at = start(allowed, batch, inner) + m.to(tl.int64)[:, None] * allowed[3] + n.to(tl.int64)[None, :] * allowed[4]
        scores = tl.where(tl.load(at, mask=real[None, :], other=0) != 0, scores, -INFINITY)
    if HAS_BAND:
        if crosses(n0 - (m0 + BM - 1), n0 + BN - 1 - m0, band):
            scores = tl.where(allows(n[None, :] - m[:, None], band), scores, -INFINITY)
    return scores


@triton.jit
def kept_weights(seed, dropout, m, n, batch, queries, keys):
    """1 / (1 - dropout) where a weight is kept and 0 where it is dropped; the same in every kernel.

    seed: a pointer to seeds, and how many batch elements share each of them.
    """
    own = batch % seed[1]
    place = (own.to(tl.int64) * queries + m.to(tl.int64))[:, None] * keys + n.to(tl.int64)[None, :]
    return tl.where(tl.rand(tl.load(seed[0] + batch // seed[1]), place) >= dropout, 1.0 / (1.0 - dropout), 0.0)
