"""The switch of each head: a factor of its output, 0 while it is silent."""

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.shapes import describe

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHeadAttention


def checked_gate(gate: Tensor, heads: int) -> Tensor:
    """The gate that somebody assigned, if it has one factor for each head."""
    if isinstance(gate, Tensor) and gate.shape == (heads,):
        return gate
    raise RegardError(
        "head_gate",
        got=describe(gate),
        needed=f"({heads},), one factor for each head",
        repair="Assign such a tensor, or use switch_off and switch_on.",
    )


def switch(layer: "MultiHeadAttention", heads: int | Iterable[int], factor: float) -> None:
    """Set the factor of some heads; a gate of nothing but ones is no gate."""
    chosen = _chosen(heads, layer.heads)
    if isinstance(layer.head_gate, nn.Parameter):  # whoever trains it keeps it
        with torch.no_grad():
            layer.head_gate[chosen] = factor
        return
    gate = layer.input.parts()[0].new_ones(layer.heads) if layer.head_gate is None else layer.head_gate.clone()
    gate[chosen] = factor
    if "head_gate" in layer._parameters:  # of a gate that learnt and was taken away the name is left
        del layer.head_gate
        layer.register_buffer("head_gate", None, persistent=False)
    layer.head_gate = None if bool((gate == 1).all()) else gate


def _chosen(heads: Any, count: int) -> list[int]:
    chosen: list[Any]
    try:
        chosen = list(heads)
    except TypeError:  # a single one, or nothing that could be one
        chosen = [heads]
    for head in chosen:
        if isinstance(head, bool) or not isinstance(head, Integral) or not -count <= int(head) < count:
            raise RegardError(
                "heads",
                got=repr(head),
                needed=f"numbers of heads, from 0 to {count - 1}",
                repair="Pass for example [0, 2].",
            )
    return [int(head) for head in chosen]
