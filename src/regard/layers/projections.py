"""The projections Wq, Wk and Wv of a multi-head layer, computed as one product where inputs are shared (eq. 14)."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import (
    check_inputs,
    check_tensor,
    describe,
    is_autocast_enabled,
    is_cast_by_autocast,
    is_strided_nested,
    needs_grad,
)
from regard.errors import RegardError
from regard.torch_compat import (
    has_forward_gradients,
    has_forward_hooks,
    has_onednn_linear,
    is_plain_tensor,
    is_traced,
    onednn_linear,
)

NAMES = ("query", "key", "value")
# Tokens from which training on a CPU is faster if the projected heads are copied to be contiguous: `python -m
# benchmarks multihead`.
MIN_COPIED_TOKENS = 1024
# Multiplications from which oneDNN pays for an evaluation on an AMD processor; a length that it has not met yet costs
# it half a millisecond once. `python -m benchmarks multihead`.
MIN_ONEDNN_WORK = 2**25


class QKVProjection(nn.Module):
    """Wq q, Wk k and Wv v of eq. 14 for all heads; inputs and heads may have any sizes.

    Args:
        inputs: sizes of query, key and value.
        heads: numbers of heads of query, key and value.
        head_dims: sizes of one head of query, key and value.
        bias: whether the projections have biases.

    Attributes:
        weight: (sum of outputs, dim), the rows of Wq, Wk and Wv in this order, if all inputs have one size.
        query_weight: (query outputs, query size), if inputs have different sizes; so are `key_weight` and
            `value_weight`.
        bias: (sum of outputs), in the same order, or None.
    """

    query_weight: Tensor
    key_weight: Tensor
    value_weight: Tensor

    def __init__(
        self, inputs: tuple[int, int, int], heads: tuple[int, int, int], head_dims: tuple[int, int, int], bias: bool
    ) -> None:
        """Draw the weights as nn.MultiheadAttention does."""
        super().__init__()
        self.inputs = inputs
        self.heads = heads
        self.head_dims = head_dims
        self.outputs = tuple(number * size for number, size in zip(heads, head_dims, strict=True))
        self.packed = len(set(inputs)) == 1
        if self.packed:
            self.weight = nn.Parameter(torch.empty(sum(self.outputs), inputs[0]))
        else:
            for name, size, output in zip(NAMES, inputs, self.outputs, strict=True):
                setattr(self, f"{name}_weight", nn.Parameter(torch.empty(output, size)))
        self.bias = nn.Parameter(torch.empty(sum(self.outputs))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from Xavier's uniform distribution and set biases to 0."""
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self, query: Tensor | None, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return projected queries, keys and values.

        Every projection goes through this method, so that forward hooks always run; torch.nn.utils.prune needs them.

        Args:
            query: (*batch, queries, query size), or None in `remember`, which has no queries.
            key: (*batch, keys, key size), or None in `recall`, which has only queries.
            value: (*batch, keys, value size), or None as the key.

        Returns:
            (*batch, heads, tokens, head_dim) for each input, None for None. Inputs that are the same tensor are views
            of one product.

        Raises:
            RegardError: if tokens do not fit the weights or one another.
        """
        if query is not None and self.packed and query is key and key is value:
            weight = self.weight
            self._check(0, query, weight)
            query, key, value = self.split(linear(query, weight, self.bias))
            return query, key, value
        if query is not None and key is not None and value is not None:
            check_inputs(query, key, value)
        query = None if query is None else self._project(0, query)
        if key is not None and value is not None:
            key, value = self._project_key_value(key, value)
        return query, key, value

    def matrices(self) -> tuple[Tensor, ...]:
        """Return Wq, Wk and Wv, (output, input) each."""
        if self.packed:
            return self.weight.split_with_sizes(self.outputs)
        return self.query_weight, self.key_weight, self.value_weight

    def split(self, projected: Tensor, first: int = 0) -> list[Tensor]:
        """Return the projected inputs of one product, (*batch, heads, tokens, head_dim) each.

        Args:
            projected: (*batch, tokens, outputs).
            first: number of the first input in the product: 0 for the query, 1 for the key.
        """
        heads, sizes = self.heads[first:], self.head_dims[first:]
        if sizes.count(sizes[0]) == len(sizes):
            whole = projected.view(*projected.shape[:-1], sum(heads), sizes[0])
            is_copied = projected.requires_grad and _is_long_on_cpu(projected)
            if is_copied or not projected.requires_grad:  # one transpose for all inputs: fewer calls
                moved = whole.transpose(-3, -2)
                return list((moved.contiguous() if is_copied else moved).split_with_sizes(heads, -3))
            # Transpose last, so that the backward pass joins the gradients in the layout of the product.
            return [part.transpose(-3, -2) for part in whole.split_with_sizes(heads, -2)]
        parts = projected.split_with_sizes(self.outputs[first:], -1)
        return [_split_heads(*part) for part in zip(parts, heads, sizes, strict=True)]

    def _project(self, index: int, tokens: Tensor) -> Tensor:
        weight = self.weight if self.packed else getattr(self, f"{NAMES[index]}_weight")
        self._check(index, tokens, weight)
        first, count, bias = sum(self.outputs[:index]), self.outputs[index], self.bias
        if self.packed:
            weight = weight.narrow(0, first, count)
        projected = linear(tokens, weight, None if bias is None else bias.narrow(0, first, count))
        return _split_heads(projected, self.heads[index], self.head_dims[index])

    def _project_key_value(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if not (self.packed and key is value):
            return self._project(1, key), self._project(2, value)
        weight = self.weight
        self._check(1, key, weight)
        first = self.outputs[0]
        bias = None if self.bias is None else self.bias[first:]
        key, value = self.split(linear(key, weight[first:], bias), 1)
        return key, value

    def _check(self, index: int, tokens: Tensor, weight: Tensor) -> None:
        """Raise unless tokens fit the weights."""
        name, size = NAMES[index], self.inputs[index]
        if isinstance(tokens, Tensor) and (is_strided_nested(tokens) or tokens.layout is not torch.strided):
            check_tensor(name, tokens)
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != size:
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"(*batch, tokens, {size}), as this layer was built",
                repair=f"Pass tokens of size {size}, or build the layer with other sizes (dim, key_dim, value_dim).",
            )
        if tokens.device != weight.device:
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"the device of the layer, {weight.device}",
                repair="Move one of them, for example layer.to(query.device).",
            )
        if tokens.dtype != weight.dtype and not (is_cast_by_autocast(tokens) and is_cast_by_autocast(weight)):
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"{str(weight.dtype).removeprefix('torch.')}, the dtype of the layer",
                repair="Convert one of them, for example layer.to(query.dtype).",
            )

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"inputs={self.inputs}, heads={self.heads}, head_dims={self.head_dims}, bias={self.bias is not None}"


def linear(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return tokens (*batch, tokens, dim) times weight (outputs, dim), plus bias (outputs)."""
    if _is_for_onednn(tokens, weight, bias):
        return onednn_linear(tokens, weight, bias)
    return functional.linear(tokens, weight, bias)


def apply_linear(module: nn.Module, tokens: Tensor) -> Tensor:
    """Return module(tokens) for a module that was nn.Linear, and may have been replaced, patched or given hooks."""
    is_fit = type(module) is nn.Linear and _is_for_onednn(tokens, module.weight, module.bias)
    if is_fit and "forward" not in vars(module) and not has_forward_hooks(module):
        return onednn_linear(tokens, module.weight, module.bias)
    return module(tokens)


def _is_for_onednn(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether oneDNN computes the product as torch would, and faster.

    torch multiplies float32 by MKL, which on AMD's processors takes up to twice as long as oneDNN.
    """
    if torch.compiler.is_compiling() or tokens.numel() * weight.shape[0] < MIN_ONEDNN_WORK or not is_amd_cpu():
        return False
    tensors = (tokens, weight) if bias is None else (tokens, weight, bias)
    if needs_grad(*tensors) or has_forward_gradients() or is_traced() or is_autocast_enabled(tokens.device):
        return False
    for x in tensors:
        is_strided_float = x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided
        if not is_strided_float or not is_plain_tensor(x):
            return False
    is_bias_fit = bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous())
    return is_bias_fit and tokens.shape[-1] == weight.shape[-1] and has_onednn_linear()


@cache
def is_amd_cpu() -> bool:
    """Return whether the processor is one of AMD's, as far as the system tells."""
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "AuthenticAMD" in facts.read_text()


def _split_heads(tokens: Tensor, heads: int, size: int) -> Tensor:
    """Return (*batch, tokens, heads * size) as a view (*batch, heads, tokens, size)."""
    return tokens.view(*tokens.shape[:-1], heads, size).transpose(-3, -2)


def _is_long_on_cpu(tokens: Tensor) -> bool:
    """Return whether copying (*batch, tokens, dim) pays; a compiled program must not depend on the length."""
    if tokens.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return tokens.shape[-2] >= MIN_COPIED_TOKENS
