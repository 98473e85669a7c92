"""The projections of queries, keys and values: one packed product where the three are one tensor."""

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.product import product
from regard.shapes import check_inputs, check_tensor, describe, is_cast, is_ragged

NAMES = ("query", "key", "value")
# Tokens from which on a training on a CPU is faster with heads apart in memory.
LONG = 1024


class Projections(nn.Module):
    """Wq q, Wk k, Wv v of eq. 14 for all heads, inputs and heads of any sizes.

    Inputs of one size share one parameter, `weight` (all outputs, dim), whose rows are those of Wq, Wk, Wv in this
    order; otherwise there are `query_weight`, `key_weight` and `value_weight`. `bias` has the same order, or is None.

    inputs: the sizes of query, key and value. heads, head_dims: how many heads of which size each of them becomes.
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
        """Xavier's uniform weights, zero biases."""
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self, query: Tensor | None, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """All three, (*batch, heads, tokens, head_dim) each: views of one product where the three are one tensor.

        A recall has queries alone, and a memory no queries: what is None stays None. They come here too, and not to a
        method of their own, because hooks may have something to do first, as those of torch.nn.utils.prune do.
        """
        if query is not None and self.packed and query is key and key is value:
            weight = self.weight
            self._check(0, query, weight)
            query, key, value = self.split(product(query, weight, self.bias))
            return query, key, value
        if query is not None and key is not None and value is not None:
            check_inputs(query, key, value)
        query = None if query is None else self._one(0, query)
        if key is not None and value is not None:
            key, value = self._key_value(key, value)
        return query, key, value

    def _key_value(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, in one product where they are one tensor."""
        if not (self.packed and key is value):
            return self._one(1, key), self._one(2, value)
        weight = self.weight
        self._check(1, key, weight)
        first = self.outputs[0]
        bias = None if self.bias is None else self.bias[first:]
        key, value = self.split(product(key, weight[first:], bias), 1)
        return key, value

    def parts(self) -> tuple[Tensor, ...]:
        """Wq, Wk, Wv: (output, input) each."""
        if self.packed:
            return self.weight.split_with_sizes(self.outputs)
        return self.query_weight, self.key_weight, self.value_weight

    def _one(self, index: int, tokens: Tensor) -> Tensor:
        weight = self.weight if self.packed else getattr(self, f"{NAMES[index]}_weight")
        self._check(index, tokens, weight)
        first = sum(self.outputs[:index])
        rows = slice(first, first + self.outputs[index])
        bias = None if self.bias is None else self.bias[rows]
        projected = product(tokens, weight[rows] if self.packed else weight, bias)
        return self._by_heads(projected, self.heads[index], self.head_dims[index])

    def split(self, projected: Tensor, start: int = 0) -> list[Tensor]:
        """From one product to its parts, the inputs from `start` on.

        Where gradients flow, heads are moved before tokens at the very end: so they are put together in the layout
        of the product. Otherwise they are moved once for all parts, which is fewer calls. A CPU reads long sequences
        so often, forward and backward, that a copy with the tokens of a head side by side pays.
        """
        heads, sizes = self.heads[start:], self.head_dims[start:]
        if sizes.count(sizes[0]) == len(sizes):
            whole = projected.view(*projected.shape[:-1], sum(heads), sizes[0])
            copied = projected.requires_grad and _is_long(projected)
            if copied or not projected.requires_grad:
                moved = whole.transpose(-3, -2)
                return list((moved.contiguous() if copied else moved).split_with_sizes(heads, -3))
            return [part.transpose(-3, -2) for part in whole.split_with_sizes(heads, -2)]
        parts = projected.split_with_sizes(self.outputs[start:], -1)
        return [self._by_heads(*part) for part in zip(parts, heads, sizes, strict=True)]

    def _by_heads(self, tokens: Tensor, heads: int, size: int) -> Tensor:
        """(*batch, tokens, heads * size) -> (*batch, heads, tokens, size), a view."""
        return tokens.view(*tokens.shape[:-1], heads, size).transpose(-3, -2)

    def _check(self, index: int, tokens: Tensor, weight: Tensor) -> None:
        """Refuse tokens that the weights do not fit."""
        name, size = NAMES[index], self.inputs[index]
        if isinstance(tokens, Tensor) and (is_ragged(tokens) or tokens.layout is not torch.strided):
            check_tensor(name, tokens)
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != size:
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"(*batch, tokens, {size}), as this layer was built",
                repair=f"Pass tokens of {size} entries, or build the layer for others (dim, key_dim, value_dim).",
            )
        if tokens.device != weight.device:
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"the device of the layer, {weight.device}",
                repair="Move one of them, for example layer.to(query.device).",
            )
        if tokens.dtype != weight.dtype and not (is_cast(tokens) and is_cast(weight)):
            raise RegardError(
                name,
                got=describe(tokens),
                needed=f"{str(weight.dtype).removeprefix('torch.')}, the dtype of the layer",
                repair="Convert one of them, for example layer.to(query.dtype).",
            )

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"inputs={self.inputs}, heads={self.heads}, head_dims={self.head_dims}, bias={self.bias is not None}"


def _is_long(tokens: Tensor) -> bool:
    """Whether (*batch, tokens, dim) are many, on a CPU; a graph is made for any number of tokens."""
    return tokens.device.type == "cpu" and not torch.compiler.is_compiling() and tokens.shape[-2] >= LONG
