"""Plain self-attention of a whole layer by the operator that nn.MultiheadAttention calls in evaluation.

In evaluation on a GPU the time of a short call is that of its kernel launches, and this operator has fewer of them:
`python -m benchmarks --cuda multihead`.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.backends.varlen import can_use_fused_kernels
from regard.checks import FLOATS, is_autocast_enabled
from regard.layers.projections import QKVProjection
from regard.scores.dot import is_plain_scaled_dot
from regard.torch_compat import (
    has_forward_gradients,
    has_forward_hooks,
    is_plain_tensor,
    is_traced,
    native_multi_head_attention,
)

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHeadAttention

DEVICE = "cuda"
# Up to this many tokens the operator is faster with any of its kernels. With more tokens or in half precision it must
# use a fused kernel: the others store all weights and round scores to half precision.
MAX_TOKENS = 256
# The operator uses a fused kernel only if head_dim is a multiple of this.
FUSED_HEAD_DIM = 8


def run_layer(layer: "MultiHeadAttention", query: Tensor, key: Tensor | None, value: Tensor | None) -> Tensor | None:
    """Return the output of a layer without mask and bias, computed by torch's operator for the whole layer.

    Args:
        layer: a layer that does not override `join`, because the operator joins the heads itself.
        query: the query of the call, a plain tensor on `DEVICE`.
        key: as for the layer; the query by default.
        value: as for the layer; the key by default.

    Returns:
        (batch, tokens, output_dim), or None if the operator cannot compute this call or would not be faster.
    """
    if is_traced() or query.ndim != 3:
        return None
    if (key is not None and key is not query) or (value is not None and value is not query):
        return None
    if layer.training or torch.is_grad_enabled() or has_forward_gradients() or is_autocast_enabled(query.device):
        return None
    if not query.numel() or query.dtype not in FLOATS or not _is_plain_layer(layer):
        return None
    projection, output, dim = layer.input, layer.output, query.shape[-1]
    if projection.bias is None or output.bias is None:
        return None
    weights = projection.weight, projection.bias, output.weight, output.bias
    for weight in weights:  # tensor subclasses, such as quantised weights, do not support the operator
        if not is_plain_tensor(weight) or weight.dtype != query.dtype or weight.device != query.device:
            return None
    if projection.weight.shape != (3 * dim, dim) or output.weight.shape != (dim, dim):
        return None
    needs_fused_kernel = query.shape[1] > MAX_TOKENS or query.dtype in (torch.bfloat16, torch.float16)
    if needs_fused_kernel and not _uses_fused_kernel(query, layer.head_dim):
        return None
    return native_multi_head_attention(query, layer.heads, *weights)


def _is_plain_layer(layer: "MultiHeadAttention") -> bool:
    """Return whether the layer computes eq. 14 with scaled dot products, and no hook or replaced module changes it."""
    score, projection, output = layer.score, layer.input, layer.output
    return (
        is_plain_scaled_dot(score)
        and score.scale is None
        and layer.backend == "auto"
        and layer.head_gate is None
        and layer.position_bias is None
        and layer.heads == layer.kv_heads
        and layer.heads % 2 == 0  # nn.MultiheadAttention does not call the operator for odd numbers of heads
        and type(projection) is QKVProjection
        and type(output) is nn.Linear
        and projection.packed
        and not any("forward" in vars(module) for module in (projection, output))
        and not has_forward_hooks(projection, output)
    )


def _uses_fused_kernel(query: Tensor, head_dim: int) -> bool:
    """Return whether the operator uses a fused kernel, whose memory is linear in tokens."""
    if query.dtype == torch.float64 or head_dim % FUSED_HEAD_DIM:
        return False
    return query.dtype == torch.float32 or can_use_fused_kernels(query.device)
