"""The only module that uses private names of torch.

Many functions return whether a call is traced, transformed or captured in a CUDA graph. While a call is traced,
transformed or intercepted by a mode, the library must not read tensor values and must not cache tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef as CustomOpDef  # for regard.backends.custom_op
from torch.autograd import forward_ad

T = TypeVar("T")
_VIEW_TRACKING = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
"""The dispatch key at which autograd records views and in-place changes."""
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
"""The dispatch key at which torch.export keeps its modes."""
_ONEDNN_LINEAR: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""The operator that torch.compile uses for linear layers on a CPU, or None if torch was built without it."""
EFFICIENT_ATTENTION: Any = getattr(getattr(torch.ops.aten, "_efficient_attention_forward", None), "default", None)
"""torch's memory-efficient attention kernel, or None if this version of torch does not have it."""

is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Return whether autocast is enabled for any device type; faster than torch.is_autocast_enabled(device_type)."""
forward_gradient_level = partial(attrgetter("_current_level"), forward_ad)
"""The level of forward-mode differentiation, -1 outside of it. Faster than `has_forward_gradients`, but torch.compile
cannot trace it."""


def is_traced() -> bool:
    """Return whether the call is compiled, traced, transformed or intercepted by a mode."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or in_transform()


def in_transform() -> bool:
    """Return whether a torch.func transform or a dispatch mode is active, such as FakeTensorMode or torch.export's.

    New tensors then belong to the transform or the mode and must not be cached. `in_functorch` asks for transforms
    only.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)
    )


def in_functorch() -> bool:
    """Return whether a torch.func transform is active, such as grad or vmap; modes do not count.

    Inside a transform, `requires_grad` does not show whether a tensor is differentiated.
    """
    return torch._C._are_functorch_transforms_active()


def is_exporting() -> bool:
    """Return whether torch.export traces the call; its program must accept every sequence length."""
    # Not torch.compiler.is_exporting, which is also True inside torch.compile before torch 2.13.
    return torch.compiler._is_exporting_flag


def has_forward_gradients() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def computes_forward_gradients() -> bool:
    """Return whether operations compute forward-mode derivatives. torch.compile cannot trace this function.

    False inside of an autograd.Function and of `without_forward_gradients`.
    """
    return has_forward_gradients() and forward_ad._is_fwd_grad_enabled()


def without_forward_gradients() -> AbstractContextManager:
    """Return a context in which operations compute no forward-mode derivatives."""
    return forward_ad._set_fwd_grad_enabled(False)


def has_saved_tensor_hooks() -> bool:
    """Return whether a hook replaces the tensors saved for the backward pass, as activation checkpointing does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_legacy_batched(tensor: Tensor) -> bool:
    """Return whether autograd batches the tensor by its older vmap, for is_grads_batched=True or vectorize=True."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def is_plain_tensor(tensor: Tensor) -> bool:
    """Return whether the type of a tensor is torch.Tensor or torch.nn.Parameter, and not another subclass."""
    return type(tensor) in (Tensor, torch.nn.Parameter)


def can_read_values(tensor: Tensor) -> bool:
    """Return whether values can be read without waiting for a device: a CPU tensor outside of tracing."""
    return tensor.device.type == "cpu" and is_plain_tensor(tensor) and not is_traced()


def current_stream(device: torch.device) -> int | None:
    """Return the current CUDA stream, 0 for other devices, and None while a CUDA graph is captured."""
    if device.type != "cuda":
        return 0
    return None if torch._C._cuda_isCurrentStreamCapturing() else torch._C._cuda_getCurrentRawStream(device.index)


def call_outside_modes(make: Callable[[], T]) -> T:
    """Call a function outside of inference mode and of modes that override torch functions, and return its result.

    Args:
        make: takes no arguments.

    Returns:
        What `make` returns.
    """
    with torch._C.DisableTorchFunction():
        if not torch.is_inference_mode_enabled():  # entering inference_mode(False) takes longer than most calls of make
            return make()
        with torch.inference_mode(False):
            return make()


def call_for_reuse(make: Callable[[], T]) -> T:
    """Call a function that makes a tensor for later calls, and return its result.

    The function runs outside of inference mode, because autograd cannot save a tensor made in inference mode for a
    backward pass. While a call is traced, the function runs inside the active modes, so that the trace contains it.

    Args:
        make: takes no arguments.

    Returns:
        What `make` returns.
    """
    return make() if is_traced() else call_outside_modes(make)


@contextmanager
def below_autograd() -> Iterator[None]:
    """Disable what autograd records inside the block: gradients, views and in-place changes.

    Otherwise torch.compile would compile a function again for parameters and for inference mode.
    """
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_VIEW_TRACKING), torch.no_grad():
        yield


def has_cpp_compiler() -> bool:
    """Return whether torch.compile finds a working C++ compiler."""
    from torch._inductor import cpp_builder  # slow to import; already imported if the caller is compiled for a CPU

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError:
        return False
    return True


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
) -> Tensor:
    """Return the attention of packed sequences by torch.nn.attention.varlen.varlen_attn.

    Args:
        query: (queries, heads, dim), the queries of all sequences.
        key: (keys, heads, dim), the keys of all sequences.
        value: (keys, heads, dim).
        cu_seq_q: int32 (sequences + 1), cumulative numbers of queries.
        cu_seq_k: int32 (sequences + 1), cumulative numbers of keys.
        max_q: largest number of queries of a sequence.
        max_k: largest number of keys of a sequence.
        scale: factor of the dot products.

    Returns:
        (queries, heads, dim).
    """
    from torch.nn.attention import varlen  # imported here, because torch.nn.attention.varlen imports Triton

    output = varlen.varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale)
    assert isinstance(output, Tensor)  # it is a tuple only if return_aux is given
    return output


def has_onednn_linear() -> bool:
    """Return whether torch was built with oneDNN's linear operator and oneDNN is enabled."""
    mkldnn = torch.backends.mkldnn
    return _ONEDNN_LINEAR is not None and mkldnn.is_available() and bool(mkldnn.enabled)


def onednn_linear(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of functional.linear, computed by oneDNN without derivatives.

    Args:
        tokens: float32 (*batch, tokens, dim).
        weight: float32 (outputs, dim).
        bias: float32 (outputs), contiguous because oneDNN ignores its stride, or None.

    Returns:
        (*batch, tokens, outputs).
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

    Returns:
        (batch, tokens, dim).
    """
    dim = tokens.shape[-1]
    return torch._native_multi_head_attention(
        tokens, tokens, tokens, dim, heads, weight, bias, output_weight, output_bias, need_weights=False
    )[0]


def has_forward_hooks(*modules: torch.nn.Module) -> bool:
    """Return whether a forward hook or forward pre-hook is registered, for one of these modules or globally."""
    registry = torch.nn.modules.module
    if registry._global_forward_hooks or registry._global_forward_pre_hooks:
        return True
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)
