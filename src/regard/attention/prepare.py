"""From the arguments of a call to the problem that backends run: every check is made here, once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Bias, Problem
from regard.checks import (
    FLOATS,
    can_broadcast,
    check_inputs,
    common_batch,
    describe,
    is_autocast_enabled,
    is_cast_by_autocast,
)
from regard.errors import RegardError
from regard.masks import Mask
from regard.masks.bound import BoundMask, without_full_bands
from regard.scores.base import CallablePair, PairScore, Score
from regard.scores.names import SHARED_SCORES, ScoreLike, check_score, score_by_name
from regard.torch_compat import is_any_autocast_enabled


class Options(NamedTuple):
    """The arguments of a call beside query, key, value and score.

    Attributes:
        mask: the user's mask, or a mask that is bound already.
        bias: added to the scores by the call.
        layer_bias: added to the scores by a layer.
        dropout: probability with which a weight is dropped.
        tolerance: error allowed for each tanh of an additive score.
        first_query: position of the first query, where a Memory or a shard gives it.
        padding_is_zero: whether padding holds 0 already, as in a Memory.
    """

    mask: Mask | BoundMask | None = None
    bias: Bias | None = None
    layer_bias: Bias | None = None
    dropout: float = 0.0
    tolerance: float | None = None
    first_query: int | None = None
    padding_is_zero: bool = False


def prepare(query: Tensor, key: Tensor, value: Tensor, score: ScoreLike, options: Options) -> Problem:
    """Return the problem of one call, after all checks.

    Args:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim).
        value: (*batch, keys, value_dim).
        score: a name, a score or a callable.
        options: the other arguments.
    """
    has_one_batch = check_inputs(query, key, value)
    if isinstance(score, str):
        score = SHARED_SCORES.get(score) or score_by_name(score)
    elif not isinstance(score, Score):
        check_score(score)
        query, key, value = to_autocast(query), to_autocast(key), to_autocast(value)
        checked = checked_callable(under_autocast(score, query.device), common_batch(query, key, value))
        return to_problem(CallablePair(query, key, checked), value, options)
    if is_any_autocast_enabled():
        query, key, value = to_autocast(query, score), to_autocast(key, score), to_autocast(value)
    pair = score.pair(score.prepare_query(query), score.prepare_key(key))
    # Only preparation and parameters of a score can give tokens other batch axes.
    has_one_batch = has_one_batch and pair.query is query and pair.key is key and len(pair.parameters()) == 0
    return to_problem(pair, value, options, score.sink_logits(), has_one_batch=has_one_batch)


def to_problem(
    pair: PairScore, value: Tensor, options: Options, sink: Tensor | None = None, *, has_one_batch: bool = False
) -> Problem:
    """Return the problem of prepared queries and keys: mask and biases are bound to the sizes of the call.

    has_one_batch: whether the batch axes of query, key and value are known to be equal.
    """
    mask, bias, layer_bias, dropout, tolerance, first_query, padding_is_zero = options
    if type(dropout) is not float or dropout:
        check_dropout(dropout)
    if tolerance is not None:
        _check_tolerance(tolerance)
    first = 0 if first_query is None else first_query  # not `or`: a symbolic number must not become a branch
    batch = None
    if not has_one_batch:
        batch = common_batch(pair.query, pair.key, value, *pair.parameters(), argument="score")
        has_one_batch = pair.query.shape[:-2] == pair.key.shape[:-2] == value.shape[:-2]
    if mask is not None or bias is not None or layer_bias is not None:
        queries, keys, device = pair.query.shape[-2], value.shape[-2], value.device
        batch = tuple(value.shape[:-2]) if batch is None else batch
        if mask is not None:
            if not isinstance(mask, BoundMask):
                mask = Mask.expect(mask)
                mask = mask.place(batch=batch, queries=queries, keys=keys, device=device, first_query=first_query)
            mask = without_full_bands(mask, queries, keys)
        if bias is not None or layer_bias is not None:
            shape = (*batch, queries, keys)
            biases = [_checked_bias(given, shape, device) for given in (bias, layer_bias) if given is not None]
            bias = _sum_of_biases(biases, first)
    return Problem(pair, value, mask, bias, dropout, tolerance, sink, first, padding_is_zero, has_one_batch)


def checked_callable(
    score: Callable[[Tensor, Tensor], Tensor], batch: tuple[int, ...]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A user's score whose result is checked: a wrong shape must not broadcast into nonsense."""

    def checked(query: Tensor, key: Tensor) -> Tensor:
        tile, wanted = score(query, key), (*batch, query.shape[-2], key.shape[-2])
        # Of a bias an axis of size 1 is shared; a score for each query or key alone would be a mistake without a word.
        is_whole = isinstance(tile, Tensor) and tuple(tile.shape[-2:]) == wanted[-2:]
        repair = "Return one score per pair, for example query @ key.mT."
        return _check_tile("score", tile, wanted, query.device, is_whole, repair)

    return checked


def under_autocast(
    score: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """A user's score as it would run here and now: backends accumulate without autocast, its layers want theirs."""
    if not is_autocast_enabled(device):
        return score
    kind, dtype = device.type, torch.get_autocast_dtype(device.type)

    def cast(query: Tensor, key: Tensor) -> Tensor:
        with torch.autocast(kind, dtype):
            return score(query, key)

    return cast


def _checked_callable_bias(
    bias: Callable[[Tensor, Tensor], Tensor], batch: tuple[int, ...]
) -> Callable[[Tensor, Tensor], Tensor]:
    """A user's bias whose result is checked."""

    def checked(queries: Tensor, keys: Tensor) -> Tensor:
        wanted = (*batch, queries.shape[-1], keys.shape[-1])
        repair = "Return a tile for the positions it is given, for example -(queries[:, None] - keys).abs()."
        tile = bias(queries, keys)
        # With as many queries as keys, b[queries, keys] is the diagonal, which would broadcast to every row.
        is_whole = isinstance(tile, Tensor) and tile.ndim != 1
        return _check_tile("bias", tile, wanted, queries.device, is_whole, repair)

    return checked


def _check_tile(
    argument: str, tile: object, wanted: tuple[int, ...], device: torch.device, is_whole: bool, repair: str
) -> Tensor:
    """What a callable returned, if it is floating point, there, whole, and broadcasts to (*batch, queries, keys)."""
    if is_whole and isinstance(tile, Tensor) and tile.is_floating_point() and can_broadcast(tile.shape, wanted):
        if tile.device == device:
            return tile
        repair = f"Make it where the inputs are, on {device}."
    raise RegardError(
        argument,
        got=f"{describe(tile)} from the callable",
        needed=f"a floating-point tensor that broadcasts to (*batch, queries, keys) = {wanted}",
        repair=repair,
    )


def to_autocast(tensor: Tensor, score: object = None) -> Tensor:
    """Cast a tensor to the autocast dtype, as torch's attention does; float64 stays as it is.

    score: the score of a query or key; not given for a value. Tokens stay as they are if its can_round_tokens is False.
    """
    if (
        not is_any_autocast_enabled()
        or not is_cast_by_autocast(tensor)
        or (isinstance(score, Score) and not score.can_round_tokens)
    ):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _checked_bias(bias: Bias, shape: tuple[int, ...], device: torch.device) -> Bias:
    if not isinstance(bias, Tensor):
        if callable(bias):
            return _checked_callable_bias(bias, shape[:-2])
        raise RegardError(
            "bias",
            got=describe(bias),
            needed="a tensor, or a callable of query positions and key positions",
            repair="Convert it with torch.as_tensor.",
        )
    if bias.dtype not in FLOATS:
        raise RegardError(
            "bias",
            got=describe(bias),
            needed="floating point: a bias is added to the scores",
            repair="A boolean belongs to mask=, as Mask.keep(m) or Mask.drop(m).",
        )
    if bias.device != device:
        raise RegardError(
            "bias",
            got=describe(bias),
            needed=f"a bias on {device}, like the query",
            repair="Move it, for example bias.to(query.device).",
        )
    if not can_broadcast(bias.shape, shape):
        raise RegardError(
            "bias",
            got=f"shape {tuple(bias.shape)}",
            needed=f"a shape that broadcasts to (*batch, queries, keys) = {shape}",
            repair="Give size 1 to the axes it is shared over.",
        )
    return bias.reshape((1,) * (len(shape) - bias.ndim) + bias.shape)


def _sum_of_biases(biases: Sequence[Bias], first_query: int) -> Bias:
    """The sum of placed biases: a tensor if all are tensors, otherwise a callable of positions."""
    if len(biases) == 1:
        return biases[0]
    tensors = [bias for bias in biases if isinstance(bias, Tensor)]
    if len(tensors) == len(biases):
        return sum(tensors[1:], tensors[0])

    def tile(queries: Tensor, keys: Tensor) -> Tensor:
        tiles = [
            _bias_tile(bias, queries - first_query, keys) if isinstance(bias, Tensor) else bias(queries, keys)
            for bias in biases
        ]
        return sum(tiles[1:], tiles[0])

    return tile


def _bias_tile(bias: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The entries of these rows and columns; an axis of size 1 stays shared."""
    bias = bias if bias.shape[-2] == 1 else bias[..., rows, :]
    return bias if bias.shape[-1] == 1 else bias[..., columns]


def check_dropout(dropout: float) -> None:
    """Refuse what is not a probability."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise RegardError(
            "dropout",
            got=repr(dropout),
            needed="a probability between 0 and 1",
            repair="Pass 0.0 for none.",
        )


def _check_tolerance(tolerance: float) -> None:
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance > 0:
        raise RegardError(
            "tolerance",
            got=repr(tolerance),
            needed="a positive number, or None for the rounding of the dtype",
            repair="Pass for example 1e-3.",
        )
