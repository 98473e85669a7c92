"""What `score=` means to a layer: a module of its own, also for a name or a plain callable."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.pooling.prepare import checked_callable, under_autocast
from regard.scores.additive import Additive
from regard.scores.distance import RadialScore
from regard.scores.dot import Bilinear, ScaledDot
from regard.scores.forms import CallableForm
from regard.scores.links import LINKS, CompactLink
from regard.scores.names import KERNELS, WITH_SIZES, WITHOUT_SIZES, ScoreLike, check_score, named_score
from regard.scores.score import Score
from regard.shapes import common_batch


class Custom(Score):
    """A user's callable as a score; a callable that is a module brings its parameters along."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Keep the callable."""
        super().__init__()
        self.function = function

    def pair(self, query: Tensor, key: Tensor) -> CallableForm:
        """The callable on whatever blocks a backend chooses."""
        function = under_autocast(self.function, query.device)

        def checked(query: Tensor, key: Tensor) -> Tensor:
            return checked_callable(function, common_batch(query, key))(query, key)

        return CallableForm(query, key, checked)


def as_score(score: ScoreLike) -> Score:
    """The score of that name, made anew so that no two layers share it; a callable is wrapped."""
    check_score(score)
    if isinstance(score, str):
        return type(named_score(score))()
    return score if isinstance(score, Score) else Custom(score)


def as_head_score(score: ScoreLike, heads: int, kv_heads: int, head_dim: int) -> Score:
    """The score of a multi-head layer, over heads that the layer has projected.

    additive: the layer's projections are Wq and Wk of eq. 12; w is what is left, one per head.
    bilinear: M of eq. 10 is Wq' Wk, so that the score of projected heads is the scaled dot product.
    kernels: a bandwidth per head, learnable unless the kernel is flat.
    """
    if isinstance(score, str) and score == "additive":
        return Additive.of_projected(head_dim, heads)
    if isinstance(score, str) and score == "bilinear":
        return ScaledDot()
    if isinstance(score, str) and score in KERNELS:
        return _kernel(KERNELS[score], heads, head_dim)
    if isinstance(score, str) and score not in WITHOUT_SIZES:
        names = sorted((*WITHOUT_SIZES, *WITH_SIZES))
        repair = "Use one of these names, a module of regard.scores, or any callable (query, key) -> scores."
        raise RegardError("score", got=repr(score), needed=f"one of {', '.join(names)}", repair=repair)
    chosen = as_score(score)
    _check_heads(chosen, heads, kv_heads)
    return chosen


def _kernel(kernel: type[RadialScore], heads: int, head_dim: int) -> RadialScore:
    """A kernel whose weights differ between tokens from the first step on.

    With the layer's initial projections of unit-variance tokens, |q - k|^2 is about head_dim, give or take
    sqrt(head_dim). A support of twice that distance holds nearly all pairs (outside it there is no gradient to
    learn from); a Gaussian of width head_dim^(1/4) is the scaled dot product up to the norms of the keys (eq. 7).
    """
    link = LINKS[kernel.link_name]
    width = 1.0
    if kernel.link_name == "gaussian":
        width = head_dim**0.25
    elif isinstance(link, CompactLink) or not link.differentiable:
        width = 2 * math.sqrt(head_dim)
    return kernel(torch.full((heads, 1), width), learnable=link.differentiable)


def _check_heads(score: Score, heads: int, kv_heads: int) -> None:
    """Refuse parameters per head that the layer's heads cannot use."""
    sink = score.sink_logits()
    if sink is not None and sink.shape != (heads,):
        raise RegardError(
            "score",
            got=f"a sink of shape {tuple(sink.shape)}",
            needed=f"one logit for each of the {heads} heads",
            repair=f"Build the score with sink={heads}.",
        )
    for part in score.modules():
        axes = _head_axes(part)
        if axes and axes[-1] not in (1, heads):
            raise RegardError(
                "score",
                got=f"{part} with parameters for {axes[-1]} heads",
                needed=f"parameters for {heads} heads, or shared by all",
                repair=f"Build the score for {heads} heads.",
            )
        width = part.bandwidth if isinstance(part, RadialScore) else None
        if kv_heads != heads and isinstance(width, Tensor) and width.ndim > 1 and width.shape[-1] > 1:
            raise RegardError(
                "score",
                got=f"a bandwidth of shape {tuple(width.shape)} with {kv_heads} key heads for {heads} heads",
                needed="keys that all heads of a group share, not divided by widths of each head's own",
                repair="Give the bandwidth the shape (dim,) or (heads, 1), or leave kv_heads out.",
            )


def _head_axes(part: object) -> tuple[int, ...]:
    """The axes of a score's parameters before those of a token."""
    if isinstance(part, RadialScore) and isinstance(part.bandwidth, Tensor):
        return tuple(part.bandwidth.shape[:-1])
    if isinstance(part, Additive):
        return tuple(part.weight.shape[:-1])
    return tuple(part.matrix.shape[:-2]) if isinstance(part, Bilinear) else ()
