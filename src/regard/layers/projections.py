"""The projections Wq, Wk and Wv of a multi-head layer (eq. 14), computed as one product for equal inputs."""

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
# Smallest number of tokens for which training on a CPU is faster if the projected heads are copied to be contiguous:
# `python -m benchmarks multihead`.
MIN_COPIED_TOKENS = 1024
# Smallest number of multiplications for which oneDNN is used in evaluation on an AMD processor. The first call with a
# new length costs oneDNN half a millisecond. `python -m benchmarks multihead`.
MIN_ONEDNN_WORK = 2**25


class QKVProjection(nn.Module):
    """The projections Wq q, Wk k and Wv v of eq. 14 for all heads.

    Query, key and value may have different sizes, numbers of heads and sizes of a head.

    Args:
        inputs: sizes of query, key and value.
        heads: numbers of heads of query, key and value.
        head_dims: sizes of one head of query, key and value.
        bias: whether the projections have biases.

    Attributes:
        outputs: numbers of outputs for query, key and value: heads times head_dims.
        packed: whether all inputs have the same size, so that `weight` holds all three matrices.
        weight: (sum of outputs, input), the rows of Wq, Wk and Wv in this order. Only if `packed`.
        query_weight: Wq, (outputs[0], inputs[0]). Only if not `packed`.
        key_weight: Wk, (outputs[1], inputs[1]). Only if not `packed`.
        value_weight: Wv, (outputs[2], inputs[2]). Only if not `packed`.
        bias: (sum of outputs), in the same order, or None.
    """

    query_weight: Tensor
    key_weight: Tensor
    value_weight: Tensor

    def __init__(
        self, inputs: tuple[int, int, int], heads: tuple[int, int, int], head_dims: tuple[int, int, int], bias: bool
    ) -> None:
        """Initialise the weights as nn.MultiheadAttention does."""
        super().__init__()
        self.inputs = inputs
        self.heads = heads
        self.head_dims = head_dims
        self.outputs = tuple(num_heads * size for num_heads, size in zip(heads, head_dims, strict=True))
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
            query: (*batch, queries, inputs[0]), or None in `remember`, which has no queries.
            key: (*batch, keys, inputs[1]), or None in `recall`, which has only queries.
            value: (*batch, keys, inputs[2]), or None if key is None.

        Returns:
            (*batch, heads, tokens, head_dim) for each input, None for None. If key and value, or all three inputs, are
            the same tensor, their projections are views of one product.

        Raises:
            RegardError: if the tokens do not fit the weights or each other.
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
        """Return Wq, Wk and Wv, (outputs[i], inputs[i]) for input i."""
        if self.packed:
            return self.weight.split_with_sizes(self.outputs)
        return self.query_weight, self.key_weight, self.value_weight

    def split(self, projected: Tensor, first: int = 0) -> list[Tensor]:
        """Split a product into the heads of each input.

        Args:
            projected: (*batch, tokens, sum of outputs[first:]).
            first: index of the first input in the product: 0 for the query, 1 for the key.

        Returns:
            For each input (*batch, heads, tokens, head_dim).
        """
        heads, sizes = self.heads[first:], self.head_dims[first:]
        if sizes.count(sizes[0]) == len(sizes):
            all_heads = projected.view(*projected.shape[:-1], sum(heads), sizes[0])
            is_copied = projected.requires_grad and _is_long_on_cpu(projected)
            if is_copied or not projected.requires_grad:  # one transpose for all inputs is faster than one for each
                transposed = all_heads.transpose(-3, -2)
                return list((transposed.contiguous() if is_copied else transposed).split_with_sizes(heads, -3))
            # Transpose last, so that the backward pass concatenates the gradients in the layout of the product.
            return [part.transpose(-3, -2) for part in all_heads.split_with_sizes(heads, -2)]
        parts = projected.split_with_sizes(self.outputs[first:], -1)
        return [_split_heads(*part) for part in zip(parts, heads, sizes, strict=True)]

    def _project(self, index: int, tokens: Tensor) -> Tensor:
        """Return the heads of one input: 0 is the query, 1 the key, 2 the value."""
        weight = self.weight if self.packed else getattr(self, f"{NAMES[index]}_weight")
        self._check(index, tokens, weight)
        start, outputs, bias = sum(self.outputs[:index]), self.outputs[index], self.bias
        if self.packed:
            weight = weight.narrow(0, start, outputs)
        projected = linear(tokens, weight, None if bias is None else bias.narrow(0, start, outputs))
        return _split_heads(projected, self.heads[index], self.head_dims[index])

    def _project_key_value(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads of keys and values, by one product if they are the same tensor."""
        if not (self.packed and key is value):
            return self._project(1, key), self._project(2, value)
        weight = self.weight
        self._check(1, key, weight)
        start = self.outputs[0]
        bias = None if self.bias is None else self.bias[start:]
        key, value = self.split(linear(key, weight[start:], bias), 1)
        return key, value

    def _check(self, index: int, tokens: Tensor, weight: Tensor) -> None:
        """Raise a RegardError unless the tokens of one input fit the weights."""
        name, size = NAMES[index], self.inputs[index]
        if isinstance(tokens, Tensor) and (is_strided_nested(tokens) or tokens.layout is not torch.strided):
            check_tensor(name, tokens)
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != size:
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"(*batch, tokens, {size}), the size for which this layer was built",
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
    """Return functional.linear(tokens, weight, bias), computed by oneDNN where that is faster.

    Args:
        tokens: (*batch, tokens, dim).
        weight: (outputs, dim).
        bias: (outputs), or None.

    Returns:
        (*batch, tokens, outputs).
    """
    if _is_faster_by_onednn(tokens, weight, bias):
        return onednn_linear(tokens, weight, bias)
    return functional.linear(tokens, weight, bias)


def apply_linear(module: nn.Module, tokens: Tensor) -> Tensor:
    """Return module(tokens), computed by oneDNN where that is faster.

    Args:
        module: an nn.Linear without hooks, or any module that the user has put in its place.
        tokens: (*batch, tokens, dim).

    Returns:
        (*batch, tokens, outputs).
    """
    can_use_onednn = type(module) is nn.Linear and _is_faster_by_onednn(tokens, module.weight, module.bias)
    if can_use_onednn and "forward" not in vars(module) and not has_forward_hooks(module):
        return onednn_linear(tokens, module.weight, module.bias)
    return module(tokens)


def _is_faster_by_onednn(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether oneDNN supports a product and computes it faster than functional.linear.

    torch multiplies float32 matrices by MKL, which takes up to twice as long as oneDNN on an AMD processor.
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
    is_bias_supported = bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous())
    return is_bias_supported and tokens.shape[-1] == weight.shape[-1] and has_onednn_linear()


@cache
def is_amd_cpu() -> bool:
    """Return whether the processor is made by AMD; False where /proc/cpuinfo does not exist."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()


def _split_heads(tokens: Tensor, heads: int, size: int) -> Tensor:
    """Return (*batch, tokens, heads * size) as a view (*batch, heads, tokens, size)."""
    return tokens.view(*tokens.shape[:-1], heads, size).transpose(-3, -2)


def _is_long_on_cpu(tokens: Tensor) -> bool:
    """Return whether tokens (*batch, tokens, dim) are on a CPU and at least MIN_COPIED_TOKENS."""
    if tokens.device.type != "cpu" or torch.compiler.is_compiling():  # a compiled program must accept every length
        return False
    return tokens.shape[-2] >= MIN_COPIED_TOKENS
