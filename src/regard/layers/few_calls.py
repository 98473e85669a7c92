"""The whole layer in the fewest calls of torch: self-attention without gradients, and nothing more.

torch has an operator for it, which nn.MultiheadAttention runs in evaluation. With few tokens a layer is bound by the
number of its calls, not by their work: one is faster than six. On a CPU longer inputs, and those whose products go by
oneDNN, are faster in three; on a GPU the operator has the kernels of `attend`.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.backends.pages import hold_pages
from regard.backends.ragged import HALVES, is_able
from regard.backends.torch_sdpa import VECTOR
from regard.layers.product import is_for_onednn, is_heard, is_untouched, product
from regard.layers.projection import Projections
from regard.masks import Mask
from regard.scores.dot import is_bare
from regard.shapes import is_autocast
from regard.watched import is_plain, is_watched

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHeadAttention

MOST_TOKENS = {"cpu": 64, "cuda": 256}
# On a CPU so many multiplications in a square projection are worth more calls, however short sequences are.
MUCH_WORK = 2**26
# On a GPU the operator pools by torch's fused kernels if the size of a head is a multiple of this, and else holds all
# weights.
FUSED_HEAD = 8
# In half precision the operator rounds scores, which are float32 in every backend of `attend`, unless it is fused.
WHOLE = (torch.float32, torch.float64)


def few_calls(
    layer: "MultiHeadAttention", query: Tensor, key: Tensor | None, value: Tensor | None, mask: Mask | None
) -> Tensor | None:
    """(batch, tokens, dim) -> (batch, tokens, dim) (eq. 14); None where the layer is or does something else."""
    if mask is not None or torch.is_grad_enabled() or layer.training or type(query) is not Tensor or query.ndim != 3:
        return None
    if (key is not None and key is not query) or (value is not None and value is not query):
        return None
    # Looked up where modules keep them: each access by name would cost a microsecond, and a short call costs fifty.
    inner, output, score = (layer._modules[name] for name in ("input", "output", "score"))
    if not _is_plain(layer, score) or not _are_plain(inner, output) or _is_changed(query.device):
        return None
    assert inner is not None
    assert output is not None
    first, last = inner._parameters, output._parameters
    weight, bias, out_weight, out_bias = first.get("weight"), first.get("bias"), last.get("weight"), last.get("bias")
    if weight is None or bias is None or out_weight is None or out_bias is None:
        return None
    # A subclass, as of quantised weights, has no rule for the operator.
    if not (is_plain(weight) and is_plain(bias) and is_plain(out_weight) and is_plain(out_bias)):
        return None
    if not _fit(query, weight, out_weight):
        return None
    is_long, dim = _is_long(query), query.shape[2]
    if query.device.type == "cpu" and (is_long or is_for_onednn(query, weight, bias)):
        assert isinstance(inner, Projections)
        return _three_calls(inner, query, weight, bias, out_weight, out_bias)
    if (is_long or query.dtype in HALVES) and not _is_fused(layer, query):
        return None
    return torch._native_multi_head_attention(
        query, query, query, dim, layer.heads, weight, bias, out_weight, out_bias, need_weights=False
    )[0]


def _three_calls(
    inner: Projections, query: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor
) -> Tensor | None:
    """Project, pool, join."""
    if query.shape[1] < VECTOR:  # for which the second one would need a mask
        return None
    hold_pages()
    query, key, value = inner.split(product(query, weight, bias))
    heads = functional.scaled_dot_product_attention(query, key, value)
    return product(heads.transpose(1, 2).flatten(2), out_weight, out_bias)


def _is_changed(device: torch.device) -> bool:
    """Whether somebody watches, casts or listens to what is computed."""
    return is_watched() or is_autocast(device) or is_heard()


def _is_long(query: Tensor) -> bool:
    """Whether the operator would not be the faster way, or hold all weights."""
    (_, tokens, dim), device = query.shape, query.device.type
    return tokens > MOST_TOKENS.get(device, 0) or (device == "cpu" and query.numel() * dim >= MUCH_WORK)


def _is_fused(layer: "MultiHeadAttention", query: Tensor) -> bool:
    """Whether on a GPU the operator pools as `attend` does, by a kernel that never holds tokens in pairs."""
    if query.device.type != "cuda" or query.dtype == torch.float64 or layer.head_dim % FUSED_HEAD:
        return False
    return query.dtype == torch.float32 or is_able(query.device)


def _fit(query: Tensor, weight: Tensor, out_weight: Tensor) -> bool:
    """Whether there are tokens, and all projections are square, as the operator has them."""
    batch, tokens, dim = query.shape
    return (
        batch > 0
        and tokens > 0
        and (query.dtype in WHOLE or query.dtype in HALVES)
        and query.dtype == weight.dtype
        and query.device == weight.device
        and weight.shape == (3 * dim, dim)
        and out_weight.shape == (dim, dim)
    )


def _is_plain(layer: "MultiHeadAttention", score: nn.Module | None) -> bool:
    """Whether the layer is the scaled dot product of eq. 14 and nothing more."""
    return (
        is_bare(score)
        and score.scale is None
        and layer.backend == "auto"
        and layer._buffers.get("head_gate", layer) is None  # a gate that learns is no buffer
        and layer.position_bias is None
        and layer.heads == layer.kv_heads
        and layer.heads % 2 == 0
    )


def _are_plain(inner: nn.Module | None, output: nn.Module | None) -> bool:
    """Whether both projections are the layer's own, and nobody listens to them."""
    return (
        type(inner) is Projections
        and is_untouched(output)
        and inner.packed
        and "forward" not in inner.__dict__
        and not (inner._forward_hooks or inner._forward_pre_hooks)
    )
