"""The everyday call: dot products of tokens of one shape, all seen or causally, straight to torch.

On a GPU a short call waits for Python: what the way of every other call costs would be a sixth of it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from regard.masks import Mask
from regard.scores.dot import Dot, ScaledDot
from regard.scores.names import ScoreLike, named_score
from regard.shapes import FLOATS, is_autocast


def pool(query: Tensor, key: Tensor, value: Tensor, score: ScoreLike, mask: Mask | None) -> Tensor | None:
    """The pooled values, (batch, heads, queries, dim) (eq. 1); None where there is more to check, prepare or choose."""
    if mask is not None and not (isinstance(mask, Mask) and mask.is_causal):
        return None
    # A compiler would note that there are as many queries as keys.
    if torch.compiler.is_compiling() or not _are_alike(query, key, value):
        return None
    score = named_score(score) if isinstance(score, str) else score
    # A class of somebody's own may prepare tokens in its own way.
    if not isinstance(score, ScaledDot) or type(score) not in (ScaledDot, Dot):
        return None
    if score.softcap is not None or score.sink is not None:
        return None
    return functional.scaled_dot_product_attention(query, key, value, is_causal=mask is not None, scale=score.scale)


def _are_alike(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the three are torch's own, of one shape, dtype and device, not empty, and autocast leaves them alone."""
    return (
        type(query) is type(key) is type(value) is Tensor
        and query.dtype is key.dtype is value.dtype
        and query.dtype in FLOATS
        and query.ndim == 4
        and query.shape == key.shape == value.shape
        and query.numel() > 0
        and query.device == key.device == value.device
        and not is_autocast(query.device)
    )
