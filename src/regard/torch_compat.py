"""Private names of torch, used in this file alone: whether a call is traced, exported, transformed or captured.

Before a tracer, a transform or a mode no tensor value may be read and nothing may be cached.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef as CustomOpDef
from torch.autograd import forward_ad

Made = TypeVar("Made")
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
# The operator that torch.compile uses for linear layers.
_ONEDNN_LINEAR: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


# Whether autocast is on, for any device: faster than to ask for one device by its name.
is_any_autocast = torch._C._is_any_autocast_enabled


def is_traced() -> bool:
    """Return whether the call is traced, transformed or intercepted by a mode."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or in_transform()


def in_transform() -> bool:
    """Return whether a new tensor would belong to a transform or a mode, so that it must not be kept."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)  # where torch.export keeps its modes
    )


def in_functorch() -> bool:
    """Return whether a transform of torch.func is active."""
    return torch._C._are_functorch_transforms_active()


def is_exporting() -> bool:
    """Return whether torch.export traces the call; its program has to serve every length."""
    # Not torch.compiler.is_exporting, which before torch 2.13 is True inside torch.compile, too.
    return torch.compiler._is_exporting_flag


def has_forward_gradients() -> bool:
    """Return whether forward-mode differentiation is on."""
    return forward_ad._current_level >= 0


def has_saved_tensor_hooks() -> bool:
    """Return whether a hook packs the tensors saved for a backward pass, as a checkpoint does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_legacy_batched(tensor: Tensor) -> bool:
    """Return whether autograd's older batching (is_grads_batched, vectorize) made the tensor."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def is_plain_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is no subclass of torch's own."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def can_read_values(tensor: Tensor) -> bool:
    """Return whether reading values is free: a CPU tensor outside of tracing."""
    return tensor.device.type == "cpu" and is_plain_tensor(tensor) and not is_traced()


def stream_of(device: torch.device) -> int | None:
    """Return the current CUDA stream, 0 on other devices, and None while a CUDA graph is captured."""
    if device.type != "cuda":
        return 0
    return None if torch._C._cuda_isCurrentStreamCapturing() else torch._C._cuda_getCurrentRawStream(device.index)


def outside_modes(make: Callable[[], Made]) -> Made:
    """Return make(), run outside of inference mode and of modes that replace torch's functions."""
    with torch._C.DisableTorchFunction():
        if not torch.is_inference_mode_enabled():  # leaving a mode takes longer than most of what is made
            return make()
        with torch.inference_mode(False):
            return make()


def untracked(make: Callable[[], Made]) -> Made:
    """Return make(), outside of modes unless the call is traced: what a later call may use as well."""
    return make() if is_traced() else outside_modes(make)


def aten(name: str) -> Any:
    """Return a private operator of torch, or None if this version has none of that name."""
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


@contextmanager
def below_autograd() -> Iterator[None]:
    """Record nothing of a tensor: no gradient, no view and no overwriting.

    So a compiled program sees tensors of one kind; a parameter or inference mode would need programs of their own.
    """
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_VIEWS), torch.no_grad():
        yield


def has_cpp_compiler() -> bool:
    """Return whether torch.compile finds a C++ compiler that works."""
    from torch._inductor import cpp_builder  # heavy, and loaded already where a caller was compiled for a CPU

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError:
        return False
    return True


def varlen_attn(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, edges: Tensor, queries: int, keys: int, *, scale: float
) -> Tensor:
    """Return torch.nn.attention.varlen.varlen_attn of segments; its module is imported here, because it loads Triton.

    Args:
        query: (tokens, heads, dim), the queries of all segments.
        key: (tokens, heads, dim).
        value: (tokens, heads, dim).
        starts: int32 (segments + 1), where segments begin among the queries.
        edges: int32 (segments + 1), where segments begin among the keys.
        queries: largest number of queries of a segment.
        keys: largest number of keys of a segment.
        scale: factor of the dot products.
    """
    from torch.nn.attention.varlen import varlen_attn as attend

    output = attend(query, key, value, starts, edges, queries, keys, scale=scale)
    assert isinstance(output, Tensor)
    return output


def has_onednn_linear() -> bool:
    """Return whether torch was built with oneDNN's linear operator, and oneDNN is switched on."""
    mkldnn = torch.backends.mkldnn
    return _ONEDNN_LINEAR is not None and mkldnn.is_available() and bool(mkldnn.enabled)


def onednn_linear(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return functional.linear by oneDNN; it has no derivatives, and reads a bias as if it were contiguous.

    Args:
        tokens: float32 (*batch, tokens, dim).
        weight: float32 (outputs, dim).
        bias: float32 (outputs), contiguous, or None.
    """
    return _ONEDNN_LINEAR(tokens, weight, bias, "none", [], "")


def native_multi_head_attention(
    tokens: Tensor, heads: int, weight: Tensor, bias: Tensor, output_weight: Tensor, output_bias: Tensor
) -> Tensor:
    """Return multi-head self-attention by the operator that nn.MultiheadAttention calls in evaluation.

    Args:
        tokens: (batch, tokens, dim).
        heads: number of heads.
        weight: (3 * dim, dim), the rows of Wq, Wk and Wv.
        bias: (3 * dim).
        output_weight: (dim, dim).
        output_bias: (dim).
    """
    dim = tokens.shape[-1]
    return torch._native_multi_head_attention(
        tokens, tokens, tokens, dim, heads, weight, bias, output_weight, output_bias, need_weights=False
    )[0]


def has_forward_hooks(*modules: torch.nn.Module) -> bool:
    """Return whether a hook runs around the forward of one of these modules, its own or one for all modules."""
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)
