"""Attention weights as other libraries return them, as one array a head.

`nn.MultiheadAttention` returns (batch, queries, keys), or with `average_attn_weights=False` (batch, heads, queries,
keys); Hugging Face's models return a tuple of the latter, one for each layer; `regard.inspect(...).weights()` has any
batch axes, heads the last of them.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np
from torch import Tensor

from regard.errors import RegardError
from regard.plots.numbers import Numbers, as_array

AXES = ("batch", "heads", "queries", "keys")


def as_heads(weights: Numbers, *, layer: int | None = None, batch: int | None = None) -> np.ndarray:
    """(heads, queries, keys), float64: every head of one sequence in one layer.

    Args:
        weights: (queries, keys), which is one head; (heads, queries, keys); (batch, heads, queries, keys); or a tuple
            of the latter two, one for each layer. Three axes are heads: of a batch that was averaged over its heads,
            pass one entry, weights[0].
        layer: which layer of a tuple, by its place there; it may be left out where one has weights.
        batch: which sequence of a batch; it may be left out where there is one.
    """
    parts = weights if isinstance(weights, tuple | list) else ()
    layers = {
        place: part for place, part in enumerate(parts) if isinstance(part, Tensor | np.ndarray) and part.ndim >= 3
    }
    if parts and all(part is None for part in parts):
        raise RegardError(
            "weights",
            got=f"{len(parts)} layers without weights",
            needed="weights of at least one layer",
            repair='Ask the model for them: output_attentions=True, with attn_implementation="eager".',
        )
    if layers:
        weights = layers[_layer(layer, list(layers), len(parts))]
    elif layer is not None:
        raise RegardError(
            "layer",
            got=f"{layer} for the weights of one layer",
            needed="a tuple of tensors, one for each layer",
            repair="Leave it out.",
        )
    rank = weights.ndim if isinstance(weights, Tensor | np.ndarray) else _depth(weights)
    if rank not in (2, 3, 4):
        raise RegardError(
            "weights",
            got=f"{rank} axes",
            needed="(queries, keys), (heads, queries, keys) or (batch, heads, queries, keys)",
            repair="Choose one of the other batch axes first.",
        )
    array = as_array("weights", weights, axes=AXES[-rank:])
    if rank == 4:
        return array[_chosen("batch", batch, len(array))]
    if batch is not None:
        raise RegardError(
            "batch",
            got=f"{batch} for weights of {rank} axes",
            needed="four axes: (batch, heads, queries, keys)",
            repair="Leave it out, or pass weights[entry] of what was averaged over heads.",
        )
    return array if rank == 3 else array[None]


def _depth(nested: object) -> int:
    """How many axes lists in lists have."""
    if isinstance(nested, Tensor | np.ndarray):
        return nested.ndim
    return 1 + _depth(nested[0]) if isinstance(nested, list | tuple) and nested else 0


def _layer(layer: int | None, having: list[int], count: int) -> int:
    """Which of `count` layers; having: those with weights, as models have layers without attention."""
    if layer is None and len(having) == 1:
        return having[0]
    place = _chosen("layer", layer, count) % count
    if place not in having:
        raise RegardError(
            "layer",
            got=repr(layer),
            needed=f"one that has weights: {', '.join(map(str, having))}",
            repair=f"Layer {place} has no weights; pass for example layer={having[0]}.",
        )
    return place


def _chosen(argument: str, chosen: int | None, count: int) -> int:
    if chosen is None and count == 1:
        return 0
    if isinstance(chosen, bool) or not isinstance(chosen, Integral) or not -count <= chosen < count:
        raise RegardError(
            argument,
            got="none" if chosen is None else repr(chosen),
            needed=f"one of {count}, from 0 to {count - 1}",
            repair=f"Pass for example {argument}=0.",
        )
    return int(chosen)
