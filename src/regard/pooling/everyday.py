"""The everyday call: dot products of tokens of one shape, all seen, causally or but for padding, straight to torch.

On a GPU a short call waits for Python: what the way of every other call costs would be a sixth of it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends import ragged
from regard.backends.pages import hold_pages
from regard.backends.problem import FEW_NUMBERS, may_be_differentiated
from regard.backends.torch_sdpa import VECTOR, everything
from regard.masks import Mask
from regard.pooling.padding import padding_of
from regard.scores.dot import is_bare
from regard.scores.names import ScoreLike, named_score
from regard.shapes import FLOATS
from regard.watched import is_watched


def pool(query: Tensor, key: Tensor, value: Tensor, score: ScoreLike, mask: Mask | None) -> Tensor | None:
    """The pooled values, (batch, heads, queries, dim) (eq. 1); None where there is more to check, prepare or choose."""
    # A compiler would note that there are as many queries as keys.
    if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled() or not _are_alike(query, key, value):
        return None
    scale = None
    if type(score) is not str or score != "scaled_dot":
        score = named_score(score) if isinstance(score, str) else score
        # A scale that is not positive is not for every kernel of torch (`torch_sdpa`).
        if not is_bare(score) or (score.scale is not None and score.scale <= 0):
            return None
        scale = score.scale
    is_short = query.shape[-2] < VECTOR
    if not is_short and query.device.type == "cpu":
        hold_pages()
    if mask is None:
        allowed = everything(query, key, causal=False) if is_short else None
        return functional.scaled_dot_product_attention(query, key, value, allowed, scale=scale)
    if not isinstance(mask, Mask):
        return None
    if mask.is_causal:
        allowed = everything(query, key, causal=True) if is_short else None
        return functional.scaled_dot_product_attention(
            query, key, value, allowed, is_causal=allowed is None, scale=scale
        )
    # On a CPU much padding is blanked only where it must be, which is another question.
    if mask.kept is not None and (query.device.type != "cpu" or query.numel() < FEW_NUMBERS):
        return _pool_padded(query, key, value, scale, mask)
    return None


def _pool_padded(query: Tensor, key: Tensor, value: Tensor, scale: float | None, mask: Mask) -> Tensor | None:
    """With blank padding, or without a look at it."""
    if is_watched():
        return None
    learns = may_be_differentiated(query, key, value)
    if query.device.type != ragged.DEVICE or ragged.are_few(query, key, learns):
        padding = padding_of(mask, key)
        key = padding.blank(key, learns=learns)
        if learns or query.device.type != "cpu":  # where 0 * garbage is 0 by itself, but for gradients
            value = padding.blank(value, learns=learns)
        output = functional.scaled_dot_product_attention(query, key, value, padding.bias, scale=scale)
        # torch returns NaN for a NaN query without keys.
        return output.masked_fill(padding.empty, 0.0)
    *batch, tokens, _ = query.shape
    placed = mask.place(batch=tuple(batch), queries=tokens, keys=tokens, device=query.device)
    line = ragged.line_of(query, key, value, placed, scale)
    return None if line is None else line.pool()


def _are_alike(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the three are torch's own, of one shape, dtype and device, not empty, a token's numbers side by side."""
    return (
        type(query) is type(key) is type(value) is Tensor
        and query.dtype is key.dtype is value.dtype
        and query.dtype in FLOATS
        and query.ndim == 4
        and not (query.is_nested or key.is_nested or value.is_nested)
        and query.shape == key.shape == value.shape
        and query.numel() > 0
        and query.device == key.device == value.device
        and (
            (query.is_contiguous() and key.is_contiguous() and value.is_contiguous())  # the quicker question
            or query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        )
    )
