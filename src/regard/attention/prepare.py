"""Check the arguments of a call and turn them into the problem that backends run."""

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
    """The arguments of a call other than query, key, value and score.

    Attributes:
        mask: the user's mask, or a mask that is bound already.
        bias: the bias of the call, added to the scores.
        layer_bias: the bias of the layer, added to the scores as well.
        dropout: probability with which a weight is dropped.
        tolerance: error allowed for each tanh of an additive score.
        first_query: position of the first query, if a Memory or a shard gives it.
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
    """Check all arguments of a call and return its problem.

    Args:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim).
        value: (*batch, keys, value_dim).
        score: a name, a score or a callable.
        options: the other arguments.

    Returns:
        The problem.

    Raises:
        RegardError: if an argument is invalid or does not fit the others.
    """
    has_one_batch = check_inputs(query, key, value)
    if isinstance(score, str):
        score = SHARED_SCORES.get(score) or score_by_name(score)  # the lookup is faster than a call for known names
    elif not isinstance(score, Score):
        check_score(score)
        query, key, value = cast_for_autocast(query), cast_for_autocast(key), cast_for_autocast(value)
        function = add_result_check(keep_autocast(score, query.device), common_batch(query, key, value))
        return to_problem(CallablePair(query, key, function), value, options)
    if is_any_autocast_enabled():
        query, key, value = cast_for_autocast(query, score), cast_for_autocast(key, score), cast_for_autocast(value)
    pair = score.pair(score.prepare_query(query), score.prepare_key(key))
    # Only the preparation and the parameters of a score can change the batch axes.
    has_one_batch = has_one_batch and pair.query is query and pair.key is key and len(pair.parameters()) == 0
    return to_problem(pair, value, options, score.sink_logits(), has_one_batch=has_one_batch)


def to_problem(
    pair: PairScore, value: Tensor, options: Options, sink: Tensor | None = None, *, has_one_batch: bool = False
) -> Problem:
    """Check the options and return the problem of prepared queries and keys.

    Args:
        pair: score of the prepared queries and keys.
        value: (*batch, keys, value_dim).
        options: the other arguments; mask and biases are checked against the sizes of the call.
        sink: logits of the attention sink, (*heads).
        has_one_batch: whether the batch axes of query, key and value are known to be equal.

    Returns:
        The problem.

    Raises:
        RegardError: if an option is invalid or does not fit the inputs.
    """
    mask, bias, layer_bias, first_query = options.mask, options.bias, options.layer_bias, options.first_query
    dropout = options.dropout
    if type(dropout) is not float or dropout:  # most calls have 0.0, which needs no check
        check_dropout(dropout)
    if options.tolerance is not None:
        _check_tolerance(options.tolerance)
    first = 0 if first_query is None else first_query  # not `or`, which would branch on a symbolic number
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
            biases = [_check_bias(given, shape, device) for given in (bias, layer_bias) if given is not None]
            bias = _sum_of_biases(biases, first)
    return Problem(
        pair, value, mask, bias, dropout, options.tolerance, sink, first, options.padding_is_zero, has_one_batch
    )


def add_result_check(
    score: Callable[[Tensor, Tensor], Tensor], batch: tuple[int, ...]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a user's score function with a check of its result, because a wrong shape could broadcast silently.

    Args:
        score: takes (..., queries, dim) and (..., keys, dim) and returns (..., queries, keys).
        batch: the batch shape of the call.

    Returns:
        The function. It raises a RegardError if the result is not one floating-point score for each pair.
    """

    def checked(query: Tensor, key: Tensor) -> Tensor:
        scores, shape = score(query, key), (*batch, query.shape[-2], key.shape[-2])
        # A size of 1 for queries or keys is allowed in a bias, but in scores it is most likely a mistake.
        if not _is_float_of_shape(scores, shape) or tuple(scores.shape[-2:]) != shape[-2:]:
            needed = f"one floating-point score for each pair, (*batch, queries, keys) = {shape}"
            raise _result_error("score", scores, needed, repair="Return for example query @ key.mT.")
        return _check_result_device("score", scores, query.device)

    return checked


def keep_autocast(
    score: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a user's score function that always runs under the autocast that is active now.

    Backends turn autocast off to accumulate in full precision, but layers inside the function need it.

    Args:
        score: takes (..., queries, dim) and (..., keys, dim) and returns (..., queries, keys).
        device: the device of the inputs.

    Returns:
        The function; the given one if autocast is disabled.
    """
    if not is_autocast_enabled(device):
        return score
    device_type, dtype = device.type, torch.get_autocast_dtype(device.type)

    def score_under_autocast(query: Tensor, key: Tensor) -> Tensor:
        with torch.autocast(device_type, dtype):
            return score(query, key)

    return score_under_autocast


def _add_bias_check(
    bias: Callable[[Tensor, Tensor], Tensor], batch: tuple[int, ...]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a user's bias function with a check of its result."""

    def checked(queries: Tensor, keys: Tensor) -> Tensor:
        tile, shape = bias(queries, keys), (*batch, queries.shape[-1], keys.shape[-1])
        # For equal numbers of queries and keys, b[queries, keys] is a diagonal, which would broadcast to every row.
        if not _is_float_of_shape(tile, shape) or tile.ndim == 1:
            needed = "a floating-point tensor with at least two axes that broadcasts to (*batch, queries, keys)"
            repair = "Return one entry for each pair of positions, for example -(queries[:, None] - keys).abs()."
            raise _result_error("bias", tile, f"{needed} = {shape}", repair)
        return _check_result_device("bias", tile, queries.device)

    return checked


def _is_float_of_shape(result: object, shape: tuple[int, ...]) -> bool:
    """Return whether the result of a user's callable is a floating-point tensor that broadcasts to a shape."""
    return isinstance(result, Tensor) and result.is_floating_point() and can_broadcast(result.shape, shape)


def _check_result_device(argument: str, result: Tensor, device: torch.device) -> Tensor:
    """Return the result of a user's callable; raise if it is on another device than the inputs."""
    if result.device == device:
        return result
    needed, repair = f"the device of the inputs, {device}", "Create the result on this device."
    raise _result_error(argument, result, needed, repair)


def _result_error(argument: str, result: object, needed: str, repair: str) -> RegardError:
    """Return the error for an invalid result of the callable that was passed as `argument`."""
    return RegardError(argument, got=f"{describe(result)} from the callable", needed=needed, repair=repair)


def cast_for_autocast(tensor: Tensor, score: object = None) -> Tensor:
    """Return a tensor in the dtype of autocast, as torch's attention does.

    Args:
        tensor: a query, key or value.
        score: the score of a query or key; None for a value. Tokens are not cast if its `can_round_tokens` is False.

    Returns:
        The tensor; it is not cast if autocast is disabled or if it is float64.
    """
    if (
        not is_any_autocast_enabled()
        or not is_cast_by_autocast(tensor)
        or (isinstance(score, Score) and not score.can_round_tokens)
    ):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _check_bias(bias: Bias, shape: tuple[int, ...], device: torch.device) -> Bias:
    """Return a bias with the rank of the scores, or a callable that checks its result; raise if it is invalid.

    Args:
        bias: a tensor or a callable.
        shape: (*batch, queries, keys).
        device: the device of the inputs.
    """
    if not isinstance(bias, Tensor):
        if callable(bias):
            return _add_bias_check(bias, shape[:-2])
        raise RegardError(
            "bias",
            got=describe(bias),
            needed="a tensor, or a callable of query positions and key positions",
            repair="Convert it first, for example torch.as_tensor(bias).",
        )
    if bias.dtype not in FLOATS:
        raise RegardError(
            "bias",
            got=describe(bias),
            needed="float32, float64, bfloat16 or float16, because a bias is added to the scores",
            repair="Convert it first, for example bias.float(). Pass a boolean mask as mask=Mask.keep(m) or "
            "mask=Mask.drop(m).",
        )
    if bias.device != device:
        raise RegardError(
            "bias",
            got=describe(bias),
            needed=f"the device of the query, {device}",
            repair="Move it first, for example bias.to(query.device).",
        )
    if not can_broadcast(bias.shape, shape):
        raise RegardError(
            "bias",
            got=f"shape {tuple(bias.shape)}",
            needed=f"a shape that broadcasts to (*batch, queries, keys) = {shape}",
            repair="Give size 1 to each axis over which the bias is shared.",
        )
    return bias.reshape((1,) * (len(shape) - bias.ndim) + bias.shape)


def _sum_of_biases(biases: Sequence[Bias], first_query: int) -> Bias:
    """Return the sum of biases: a tensor if all are tensors, otherwise a callable of positions.

    Args:
        biases: returned by `_check_bias`.
        first_query: position of the first query.
    """
    if len(biases) == 1:
        return biases[0]
    tensors = [bias for bias in biases if isinstance(bias, Tensor)]
    if len(tensors) == len(biases):
        return sum(tensors[1:], tensors[0])

    def sum_of_tiles(queries: Tensor, keys: Tensor) -> Tensor:
        # Positions count from the start of the sequence, but the rows of a tensor from the first query of the call.
        tiles = [
            _bias_tile(bias, queries - first_query, keys) if isinstance(bias, Tensor) else bias(queries, keys)
            for bias in biases
        ]
        return sum(tiles[1:], tiles[0])

    return sum_of_tiles


def _bias_tile(bias: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Return the entries of some rows and columns; a shared axis keeps size 1."""
    bias = bias if bias.shape[-2] == 1 else bias[..., rows, :]
    return bias if bias.shape[-1] == 1 else bias[..., cols]


def check_dropout(dropout: float) -> None:
    """Raise unless `dropout` is a probability.

    Args:
        dropout: the value to check.

    Raises:
        RegardError: if it is not a number from 0 to 1.
    """
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise RegardError(
            "dropout",
            got=repr(dropout),
            needed="a probability between 0 and 1",
            repair="Pass 0.0 to turn dropout off.",
        )


def _check_tolerance(tolerance: float) -> None:
    """Raise unless `tolerance` is a positive number."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance > 0:
        raise RegardError(
            "tolerance",
            got=repr(tolerance),
            needed="a positive number, or None for the rounding error of the dtype",
            repair="Pass for example 1e-3.",
        )
