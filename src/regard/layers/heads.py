"""Scores of multi-head layers, and grouped-query attention: several query heads share a head of keys and values."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.prepare import Options, add_result_check, keep_autocast, to_problem
from regard.backends.base import Bias, Problem
from regard.checks import broadcast_batch, common_batch, describe
from regard.errors import RegardError
from regard.masks import Mask
from regard.masks.bound import BoundMask
from regard.scores.additive import Additive
from regard.scores.base import CallablePair, PairScore, Score
from regard.scores.distance import RadialScore
from regard.scores.dot import Bilinear, ScaledDot
from regard.scores.kernels import KERNELS
from regard.scores.names import KERNEL_SCORES, NAMED_SCORES, SIZED_SCORES, ScoreLike, check_score, new_score


class CallableScore(Score):
    """The score that a user's callable computes. If the callable is a module, its parameters belong to the score.

    Args:
        function: takes (..., queries, dim) and (..., keys, dim) and returns (..., queries, keys).
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Store the callable."""
        super().__init__()
        self.function = function

    def pair(self, query: Tensor, key: Tensor) -> CallablePair:
        """Return the callable as a pair score whose results are checked."""
        function = keep_autocast(self.function, query.device)

        def checked(query: Tensor, key: Tensor) -> Tensor:
            return add_result_check(function, common_batch(query, key))(query, key)

        return CallablePair(query, key, checked)


def resolve_score(score: ScoreLike) -> Score:
    """Return the `Score` of a layer.

    Args:
        score: a name, a score or a callable.

    Returns:
        For a name a new score, so that layers share no parameters; a score itself; a callable wrapped in a
        `CallableScore`.

    Raises:
        RegardError: if `score` is none of these, or if the name is unknown or belongs to a score that needs sizes.
    """
    check_score(score)
    if isinstance(score, str):
        return new_score(score)
    return score if isinstance(score, Score) else CallableScore(score)


def resolve_head_score(score: ScoreLike, heads: int, kv_heads: int, head_dim: int) -> Score:
    """Return the `Score` of a multi-head layer, whose queries and keys are projected already.

    "additive" has only w of eq. 12, one per head, because the projections of the layer are Wq and Wk. "bilinear" is the
    scaled dot product, because M of eq. 10 is Wq' Wk. A kernel has one bandwidth per head, which is learnable unless
    the kernel is flat. Everything else is as for `resolve_score`.

    Args:
        score: a name, a score or a callable.
        heads: number of query heads.
        kv_heads: number of heads of keys and values.
        head_dim: size of a projected query and key.

    Returns:
        The score.

    Raises:
        RegardError: as for `resolve_score`, and if the parameters of a score do not fit the heads.
    """
    if isinstance(score, str):
        return _named_head_score(score, heads, head_dim)
    resolved = resolve_score(score)
    _check_head_parameters(resolved, heads, kv_heads)
    return resolved


def _named_head_score(name: str, heads: int, head_dim: int) -> Score:
    """Return the score of this name for a multi-head layer; raise a RegardError for an unknown name."""
    if name == "additive":
        return Additive.of_projected(head_dim, heads)
    if name == "bilinear":
        return ScaledDot()
    if name in KERNEL_SCORES:
        return _kernel_of_heads(KERNEL_SCORES[name], heads, head_dim)
    if name in NAMED_SCORES:
        return new_score(name)
    raise RegardError(
        "score",
        got=repr(name),
        needed=f"one of {', '.join(sorted((*NAMED_SCORES, *SIZED_SCORES)))}",
        repair="Use one of these names, a module of regard.scores, or any callable (query, key) -> scores.",
    )


def _kernel_of_heads(kernel: type[RadialScore], heads: int, head_dim: int) -> RadialScore:
    """Return a kernel score with one bandwidth per head; see `Kernel.initial_bandwidth`."""
    equation = KERNELS[kernel.kernel_name]
    bandwidth = torch.full((heads, 1), equation.initial_bandwidth(head_dim))
    return kernel(bandwidth, learnable=equation.is_differentiable)


def _check_head_parameters(score: Score, heads: int, kv_heads: int) -> None:
    """Raise a RegardError if the score has parameters per head that do not fit the heads of the layer."""
    sink = score.sink_logits()
    if sink is not None and sink.shape != (heads,):
        raise RegardError(
            "score",
            got=f"a sink of shape {tuple(sink.shape)}",
            needed=f"one logit for each of the {heads} heads",
            repair=f"Build the score with sink={heads}.",
        )
    for part in score.modules():
        axes = _batch_axes(part)
        if axes and axes[-1] not in (1, heads):
            raise RegardError(
                "score",
                got=f"{part} with parameters for {axes[-1]} heads",
                needed=f"parameters for {heads} heads, or shared by all heads",
                repair=f"Build the score for {heads} heads.",
            )
        bandwidth = part.bandwidth if isinstance(part, RadialScore) else None
        if kv_heads != heads and isinstance(bandwidth, Tensor) and bandwidth.ndim > 1 and bandwidth.shape[-1] > 1:
            raise RegardError(
                "score",
                got=f"a bandwidth of shape {tuple(bandwidth.shape)} with {kv_heads} key heads for {heads} heads",
                needed="one bandwidth for all dimensions of a head, because several query heads share their keys",
                repair="Give the bandwidth the shape (dim,) or (heads, 1), or leave kv_heads out.",
            )


def _batch_axes(score: object) -> tuple[int, ...]:
    """Return the sizes of the batch axes of the parameters of a score, () if there are none."""
    if isinstance(score, RadialScore) and isinstance(score.bandwidth, Tensor):
        return tuple(score.bandwidth.shape[:-1])
    if isinstance(score, Additive):
        return tuple(score.weight.shape[:-1])
    return tuple(score.matrix.shape[:-2]) if isinstance(score, Bilinear) else ()


def multihead_problem(pair: PairScore, value: Tensor, options: Options, sink: Tensor | None = None) -> Problem:
    """Return the problem of a multi-head call, in which query heads may share heads of keys and values.

    Args:
        pair: the score of query (*batch, heads, queries, dim) and key (*batch, kv_heads, keys, dim).
        value: (*batch, kv_heads, keys, value_dim).
        options: mask and bias have the batch axes (*batch, heads).
        sink: logits of the attention sink, (heads,).

    Returns:
        The problem. If kv_heads < heads, its batch axes are (*batch, kv_heads, heads_per_kv), and the last of them has
        size 1 for keys and values, so that they are not repeated.

    Raises:
        RegardError: if the mask, the bias or the sink does not fit the heads.
    """
    heads, kv_heads = pair.query.shape[-3], value.shape[-3]
    mask = options.mask
    if mask is not None and not isinstance(mask, BoundMask):
        mask = _bind_mask(Mask.expect(mask), pair, value, options.first_query)
        options = options._replace(mask=mask)
    if heads == kv_heads:
        return to_problem(pair, value, options, sink)
    head_axes = HeadAxes(heads, kv_heads)
    if sink is not None and sink.shape != (heads,):
        raise RegardError(
            "sink",
            got=describe(sink),
            needed=f"one logit for each of the {heads} query heads",
            repair="Pass a tensor of shape (heads,).",
        )
    mask = None if mask is None else mask.map(head_axes.split)
    rank = pair.query.ndim
    bias, layer_bias = head_axes.split_bias(options.bias, rank), head_axes.split_bias(options.layer_bias, rank)
    options = options._replace(mask=mask, bias=bias, layer_bias=layer_bias)
    sink = None if sink is None else sink.unflatten(-1, (kv_heads, -1))
    return to_problem(pair.map(head_axes.split), value.unsqueeze(-3), options, sink)


def scores_shape(pair: PairScore, value: Tensor) -> tuple[int, ...]:
    """Return the shape of the scores of a multi-head call, (*batch, heads, queries, keys).

    Args:
        pair: the score of query (*batch, heads, queries, dim) and key (*batch, kv_heads, keys, dim).
        value: (*batch, kv_heads, keys, value_dim).

    Returns:
        The shape, with the heads of the query.

    Raises:
        RegardError: if the batch axes do not broadcast.
    """
    batch = pair.query.shape[:-3]
    parameters = (("score", parameter) for parameter in pair.parameters())
    for argument, tensor in (("key", pair.key), ("value", value), *parameters):
        batch = broadcast_batch(argument, batch, tensor.shape[:-3])
    return (*batch, *pair.query.shape[-3:-1], value.shape[-2])


def _bind_mask(mask: Mask, pair: PairScore, value: Tensor, first_query: int | None) -> BoundMask:
    """Return the mask on the batch axes (*batch, heads), for any number of key heads."""
    *batch, queries, keys = scores_shape(pair, value)
    return mask.place(
        batch=tuple(batch),
        queries=queries,
        keys=keys,
        device=value.device,
        first_query=first_query,
        has_heads=True,
    )


class HeadAxes:
    """Splits the axis `heads` of tensors into the axes `kv_heads, heads_per_kv` (grouped-query attention).

    Args:
        heads: number of query heads, a multiple of kv_heads.
        kv_heads: number of heads of keys and values.
    """

    def __init__(self, heads: int, kv_heads: int) -> None:
        """Store the numbers."""
        self.heads = heads
        self.kv_heads = kv_heads

    def split(self, tensor: Tensor) -> Tensor:
        """Return a tensor whose axis -3 is split into (kv_heads, heads_per_kv).

        Args:
            tensor: (..., heads, _, _), (..., kv_heads, _, _) or (..., 1, _, _).

        Returns:
            (..., kv_heads, heads_per_kv, _, _). heads_per_kv is 1 if the tensor does not have all heads.
        """
        if tensor.shape[-3] == self.heads:
            return tensor.unflatten(-3, (self.kv_heads, self.heads // self.kv_heads))
        return tensor.unsqueeze(-3)

    def split_bias(self, bias: Bias | None, rank: int) -> Bias | None:
        """Return a bias whose axis of heads is split into (kv_heads, heads_per_kv).

        Args:
            bias: a tensor or a callable that returns one, broadcastable to (*batch, heads, queries, keys).
            rank: number of axes of (*batch, heads, queries, keys).

        Returns:
            The bias, broadcastable to (*batch, kv_heads, heads_per_kv, queries, keys).

        Raises:
            RegardError: if the axis of heads has neither size `heads` nor 1; a callable raises it when it is called.
        """
        if isinstance(bias, Tensor):
            if bias.ndim <= 2:
                return bias
            self._check_head_axis(bias)
            return self.split(bias.reshape((1,) * (rank - bias.ndim) + bias.shape))
        if bias is None or not callable(bias):
            return bias

        def split_tile(query_positions: Tensor, key_positions: Tensor) -> Tensor:
            tile = bias(query_positions, key_positions)
            if not isinstance(tile, Tensor) or tile.ndim <= 2:
                return tile
            self._check_head_axis(tile)
            return self.split(tile)

        return split_tile

    def _check_head_axis(self, bias: Tensor) -> None:
        """Raise a RegardError unless axis -3 of a bias has size 1 or one entry for each query head."""
        if bias.shape[-3] not in (1, self.heads):
            raise RegardError(
                "bias",
                got=describe(bias),
                needed=f"{self.heads} heads, or 1, on the axis before queries and keys",
                repair=f"Give one entry for each of the {self.heads} query heads, not for the heads of keys.",
            )


def check_bias_axes(bias: Bias | None, rank: int) -> None:
    """Raise if axis -3 of a bias could be either a batch axis or the heads.

    Args:
        bias: the bias of a call.
        rank: number of axes of (*batch, heads, queries, keys).

    Raises:
        RegardError: if the bias is a tensor with more axes than (queries, keys), but fewer than `rank`.
    """
    if isinstance(bias, Tensor) and 2 < bias.ndim < rank and bias.shape[-3] != 1:
        raise RegardError(
            "bias",
            got=f"{describe(bias)}, whose first axis can be examples of the batch or heads of the layer",
            needed="all axes of (*batch, heads, queries, keys), or only queries and keys",
            repair="Pass b[:, None] for one bias per example, or b[None] for one bias per head.",
        )
