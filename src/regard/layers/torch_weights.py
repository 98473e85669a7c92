"""Weights to and from nn.MultiheadAttention."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.projections import QKVProjection
from regard.scores.dot import is_plain_scaled_dot

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHeadAttention


def from_torch(cls: "type[MultiHeadAttention]", module: nn.MultiheadAttention) -> "MultiHeadAttention":
    """A layer of the given class with a copy of the module's weights, dtype, device, dropout and mode.

    What was frozen stays frozen.
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
    _copy(_tensors(module), _own_tensors(layer))
    _freeze(_parameters(module), _own_parameters(layer))
    return layer


def to_torch(layer: "MultiHeadAttention") -> nn.MultiheadAttention:
    """The module that computes what the layer does."""
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
    _copy(_own_tensors(layer), _tensors(module))
    _freeze(_own_parameters(layer), _parameters(module))
    return module


def _tensors(module: nn.MultiheadAttention) -> list[Tensor]:
    """Wq, Wk, Wv, Wo and the biases, in this order."""
    packed = module.in_proj_weight
    inputs = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight) if packed is None else packed.chunk(3)
    biases = (module.in_proj_bias, module.out_proj.bias)
    return [*inputs, module.out_proj.weight, *(bias for bias in biases if bias is not None)]


def _own_tensors(layer: "MultiHeadAttention") -> list[Tensor]:
    """The layer's, in the same order."""
    biases = (layer.input.bias, layer.output.bias)
    return [*layer.input.matrices(), layer.output.weight, *(bias for bias in biases if bias is not None)]


def _parameters(module: nn.MultiheadAttention) -> list[Tensor | None]:
    """The tensors that learn, or not, as they are kept: packed, or each of Wq, Wk, Wv."""
    inputs = (module.in_proj_weight, module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    kept = [weight for weight in inputs if weight is not None]
    return [*kept, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias]


def _own_parameters(layer: "MultiHeadAttention") -> list[Tensor | None]:
    """The layer's, in the same order."""
    inner, output = layer.input, layer.output
    kept = [inner.weight] if inner.packed else [inner.query_weight, inner.key_weight, inner.value_weight]
    return [*kept, inner.bias, output.weight, output.bias]


def _freeze(sources: list[Tensor | None], targets: list[Tensor | None]) -> None:
    for source, target in zip(sources, targets, strict=True):
        if source is not None and target is not None:
            target.requires_grad_(source.requires_grad)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)


def _check_module(module: nn.MultiheadAttention) -> None:
    if not isinstance(module, nn.MultiheadAttention):
        raise RegardError(
            "module",
            got=type(module).__name__,
            needed="an nn.MultiheadAttention",
            repair="Copy other weights by hand: layer.input holds Wq, Wk, Wv, layer.output is a linear layer.",
        )
    for option, used in (("add_bias_kv", module.bias_k is not None), ("add_zero_attn", module.add_zero_attn)):
        if used:
            raise RegardError(
                "module",
                got=f"{option}=True",
                needed="keys and values that come from the inputs alone: this option invents one more key",
                repair="Append that key yourself; for a key that takes mass and gives 0, see ScaledDot(sink=heads).",
            )


def _does_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is called as that kind is; a parametrised one has a class of its own and the same forward."""
    return isinstance(module, kind) and type(module).forward is kind.forward and "forward" not in vars(module)


def _check_layer(layer: "MultiHeadAttention") -> None:
    score, dim = layer.score, layer.input.inputs[0]
    plain = is_plain_scaled_dot(score) and score.scale is None
    linear = _does_as(layer.output, nn.Linear) and _does_as(layer.input, QKVProjection)
    wider = layer.heads * layer.head_dim != dim or (linear and layer.output.out_features != dim)
    reasons = {
        "an input or output that another module has taken the place of, as an adapter does": not linear,
        f"score {score}": not plain,
        f"kv_heads={layer.kv_heads} for {layer.heads} heads": layer.kv_heads != layer.heads,
        "sizes other than dim / heads for each head and dim for the output": wider
        or layer.value_head_dim != layer.head_dim,
        "a position_bias": layer.position_bias is not None,
        "heads that are switched off": layer.head_gate is not None,
    }
    for got, holds in reasons.items():
        if holds:
            raise RegardError(
                "to_torch",
                got=got,
                needed="what nn.MultiheadAttention can do: scaled dot products of dim / heads entries, all heads on",
                repair="Keep this layer, or build one that has the plain form (layer.switch_on() for its heads; "
                "merge an adapter into its weights first).",
            )
