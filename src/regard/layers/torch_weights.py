"""Conversion of weights between `MultiHeadAttention` and nn.MultiheadAttention."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.projections import QKVProjection
from regard.scores.dot import is_plain_scaled_dot

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHeadAttention


def from_torch(cls: "type[MultiHeadAttention]", module: nn.MultiheadAttention) -> "MultiHeadAttention":
    """Return a layer with a copy of the weights of an nn.MultiheadAttention.

    Args:
        cls: the class of the layer.
        module: the module.

    Returns:
        The layer, with the module's dtype, device, dropout and training mode. Frozen parameters stay frozen.

    Raises:
        RegardError: if `module` is another module, or if it has the options add_bias_kv or add_zero_attn.
    """
    _check_module(module)
    layer = cls(
        module.embed_dim,
        module.num_heads,
        key_dim=module.kdim,
        value_dim=module.vdim,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
    )
    layer.to(module.out_proj.weight).train(module.training)
    _copy(_module_parameters(module), _layer_parameters(layer))
    return layer


def to_torch(layer: "MultiHeadAttention") -> nn.MultiheadAttention:
    """Return an nn.MultiheadAttention with batch_first=True and a copy of the weights of a layer.

    Args:
        layer: the layer.

    Returns:
        The module, with the layer's dtype, device, dropout and training mode. Frozen parameters stay frozen.

    Raises:
        RegardError: if nn.MultiheadAttention cannot compute what the layer computes.
    """
    _check_layer(layer)
    dim, key_dim, value_dim = layer.input.inputs
    module = nn.MultiheadAttention(
        dim,
        layer.heads,
        dropout=layer.dropout,
        bias=layer.input.bias is not None,
        kdim=key_dim,
        vdim=value_dim,
        batch_first=True,
    )
    module.to(layer.output.weight).train(layer.training)
    _copy(_layer_parameters(layer), _module_parameters(module))
    return module


def _module_parameters(module: nn.MultiheadAttention) -> list[Tensor | None]:
    """Return the parameters of a module: the packed weight or Wq, Wk and Wv, the input bias, Wo, the output bias.

    Both biases are None if the module has none. The weights are packed if query, key and value have the same size, as
    in a layer, and a packed weight has the rows of Wq, Wk and Wv in the same order.
    """
    inputs = (module.in_proj_weight, module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    weights = [weight for weight in inputs if weight is not None]
    return [*weights, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias]


def _layer_parameters(layer: "MultiHeadAttention") -> list[Tensor | None]:
    """Return the parameters of a layer, in the order of `_module_parameters`."""
    projection, output = layer.input, layer.output
    if projection.packed:
        weights = [projection.weight]
    else:
        weights = [projection.query_weight, projection.key_weight, projection.value_weight]
    return [*weights, projection.bias, output.weight, output.bias]


def _copy(sources: list[Tensor | None], targets: list[Tensor | None]) -> None:
    """Copy the values and requires_grad of each source to its target; a bias that does not exist is None in both."""
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            if source is not None and target is not None:
                target.copy_(source).requires_grad_(source.requires_grad)


def _check_module(module: nn.MultiheadAttention) -> None:
    """Raise a RegardError unless a layer can compute what the module computes."""
    if not isinstance(module, nn.MultiheadAttention):
        raise RegardError(
            "module",
            got=type(module).__name__,
            needed="an nn.MultiheadAttention",
            repair="Copy the weights yourself: layer.input holds Wq, Wk and Wv, and layer.output is a linear layer.",
        )
    if _has_one_bias(module.in_proj_bias, module.out_proj.bias):
        raise RegardError(
            "module",
            got="a bias in only one of in_proj and out_proj",
            needed="both biases or none",
            repair="Give the other projection a bias of zeros.",
        )
    for option, is_used in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if is_used:
            raise RegardError(
                "module",
                got=f"{option}=True",
                needed="keys and values that come from the inputs only; this option adds one more key",
                repair="Append that key yourself; ScaledDot(sink=heads) adds a key whose value is 0.",
            )


def _has_one_bias(first: Tensor | None, second: Tensor | None) -> bool:
    """Return whether exactly one of the biases of the input and output projections exists."""
    return (first is None) != (second is None)


def _has_forward_of(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module runs the forward method of `kind`, as a parametrised subclass of it does."""
    return isinstance(module, kind) and type(module).forward is kind.forward and "forward" not in vars(module)


def _check_layer(layer: "MultiHeadAttention") -> None:
    """Raise a RegardError unless nn.MultiheadAttention can compute what the layer computes."""
    difference = _find_difference(layer)
    if difference is not None:
        raise RegardError(
            "to_torch",
            got=difference,
            needed="what nn.MultiheadAttention supports: scaled dot products, heads of size dim / heads, an output of "
            "size dim, biases in both projections or in none, and all heads on",
            repair="Merge adapters into the weights first, and call layer.switch_on() if heads are off. Otherwise keep "
            "this layer.",
        )


def _find_difference(layer: "MultiHeadAttention") -> str | None:
    """Describe the first property of a layer that nn.MultiheadAttention does not support, or return None."""
    if not (_has_forward_of(layer.input, QKVProjection) and _has_forward_of(layer.output, nn.Linear)):
        return "an input or output projection that was replaced, for example by an adapter"
    if _has_one_bias(layer.input.bias, layer.output.bias):
        return "a bias in only one of the input and output projections"
    score, dim = layer.score, layer.input.inputs[0]
    if not is_plain_scaled_dot(score) or score.scale is not None:
        return f"score {score}"
    if layer.kv_heads != layer.heads:
        return f"kv_heads={layer.kv_heads} for {layer.heads} heads"
    has_default_sizes = layer.heads * layer.head_dim == layer.heads * layer.value_head_dim == dim
    if not has_default_sizes or layer.output.out_features != dim:
        return "sizes other than dim / heads for each head and dim for the output"
    if layer.position_bias is not None:
        return "a position_bias"
    return "heads that are switched off" if layer.head_gate is not None else None
