"""A product of tokens and weights: without gradients on AMD's CPUs by oneDNN, which is faster there than MKL.

torch has both libraries, and takes MKL for float32, whatever the processor; on Intel's own the two are even.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.modules import module as modules

from regard.backends.pages import hold_pages
from regard.shapes import is_autocast
from regard.watched import is_plain, is_watched

# The operator that torch.compile makes of a product; None where torch was built without it.
ONEDNN: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
# Worth its longer call are so many weights, which no core's cache holds, or so many multiplications.
MANY_WEIGHTS, MUCH_WORK = 2**20, 2**25


def product(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(*batch, tokens, dim) times (outputs, dim), plus (outputs,) -> (*batch, tokens, outputs)."""
    if is_for_onednn(tokens, weight, bias):
        return _by_onednn(tokens, weight, bias)
    return functional.linear(tokens, weight, bias)


def product_of(linear: nn.Module, tokens: Tensor) -> Tensor:
    """What a module gives that was nn.Linear, and may have been replaced, changed, or be listened to."""
    weight, bias = linear._parameters.get("weight"), linear._parameters.get("bias")
    if weight is not None and is_untouched(linear) and not is_heard() and is_for_onednn(tokens, weight, bias):
        return _by_onednn(tokens, weight, bias)
    return linear(tokens)


def is_untouched(linear: nn.Module | None) -> bool:
    """Whether a module is nn.Linear as torch made it, and nobody listens to it."""
    return (
        type(linear) is nn.Linear
        and "forward" not in linear.__dict__
        and not (linear._forward_hooks or linear._forward_pre_hooks)
    )


def is_heard() -> bool:
    """Whether somebody listens to all modules."""
    return bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)


def is_for_onednn(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether it is the faster way; asked in an order in which most calls are soon told apart."""
    if torch.compiler.is_compiling():  # which would note the sizes
        return False
    if weight.numel() < MANY_WEIGHTS and tokens.numel() * weight.shape[0] < MUCH_WORK:
        return False
    learns = tokens.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if (learns and torch.is_grad_enabled()) or forward_ad._current_level >= 0:  # it has no derivatives
        return False
    # Of what does not fit, torch's own product has more to say.
    is_bias_right = bias is None or (_is_own(bias) and bias.shape == weight.shape[:1] and bias.is_contiguous())
    if not (is_bias_right and _is_own(tokens) and _is_own(weight)) or tokens.shape[-1] != weight.shape[-1]:
        return False
    if tokens.numel() == 0 or is_watched() or is_autocast(tokens.device):
        return False
    is_there = ONEDNN is not None and bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()
    return is_there and is_amd()


def _is_own(tensor: Tensor) -> bool:
    """Whether the operator reads it as it is."""
    is_float = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
    return is_float and tensor.layout is torch.strided and is_plain(tensor)


@cache
def is_amd() -> bool:
    """Whether the processor is one of AMD's, as far as the system tells."""
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "AuthenticAMD" in facts.read_text()


def _by_onednn(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    hold_pages()
    return ONEDNN(tokens, weight, bias, "none", [], "")
