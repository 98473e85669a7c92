"""From the arguments of a call to the problem that backends run: every check is made here, once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.problem import Bias, Problem, batch_of
from regard.errors import RegardError
from regard.masks import Mask
from regard.masks.placed import Placed
from regard.scores.forms import CallableForm, DotForm, Form
from regard.scores.names import ScoreLike, check_score, named_score
from regard.scores.score import Score
from regard.shapes import FLOATS, broadcasts, check_inputs, common_batch, describe, have_one_shape, is_autocast, is_cast


class Settings(NamedTuple):
    """What modifies a pooling beside its inputs; first_query is known where a Memory numbers the queries.

    mask: in the caller's words, or placed already by a caller whose batch axes are not those of the problem.
    bias, layer_bias: both are added to the scores; the first belongs to the call, the second to a layer.
    is_blanked: padding holds 0 already, as in a Memory.
    """

    mask: Mask | Placed | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    tolerance: float | None = None
    first_query: int | None = None
    is_blanked: bool = False
    layer_bias: Bias | None = None


def prepare(
    query: Tensor, key: Tensor, value: Tensor, score: ScoreLike, settings: Settings
) -> tuple[Problem, Tensor | None]:
    """The problem of one call, and the logits of the score's sink, if it has one."""
    check_inputs(query, key, value)
    if isinstance(score, str):
        score = named_score(score)
    if is_autocast(query.device):  # asked once for the three tensors
        query, key, value = to_autocast(query, score), to_autocast(key, score), to_autocast(value)
    if isinstance(score, Score):
        form = score.pair(score.prepare_query(query), score.prepare_key(key))
        return to_problem(form, value, settings), score.sink_logits()
    check_score(score)
    checked = checked_callable(under_autocast(score, query.device), common_batch(query, key, value))
    return to_problem(CallableForm(query, key, checked), value, settings), None


def to_problem(form: Form, value: Tensor, settings: Settings) -> Problem:
    """Lay mask and bias on the sizes of the call."""
    mask, bias, dropout, tolerance, first_query, is_blanked, layer_bias = settings
    if type(dropout) is not float or dropout:
        check_dropout(dropout)
    if tolerance is not None:
        _check_tolerance(tolerance)
    has_bias = bias is not None or layer_bias is not None
    if mask is not None or has_bias or not isinstance(form, DotForm) or _differ(form, value):
        # The batch is formed even where nothing needs it: the axes of a score's parameters must fit.
        batch, queries, keys, device = batch_of(form, value), form.query.shape[-2], value.shape[-2], value.device
        if mask is not None and not isinstance(mask, Placed):
            mask = Mask.expect(mask).place(
                batch=batch, queries=queries, keys=keys, device=device, first_query=first_query
            )
        shape = (*batch, queries, keys)
        biases = [_place_bias(given, shape, device) for given in (bias, layer_bias) if given is not None]
        bias = _add_biases(biases, first_query or 0) if biases else None
    return Problem(form, value, mask, bias, dropout, tolerance, 0 if first_query is None else first_query, is_blanked)


def _differ(form: DotForm, value: Tensor) -> bool:
    """Whether batch axes are not all the same: a score may have given heads of its own to the query."""
    if have_one_shape(form.query, form.key, value):
        return False
    return form.query.shape[:-2] != value.shape[:-2] or form.key.shape[:-2] != value.shape[:-2]


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
    if not is_autocast(device):
        return score
    kind, dtype = device.type, torch.get_autocast_dtype(device.type)

    def cast(query: Tensor, key: Tensor) -> Tensor:
        with torch.autocast(kind, dtype):
            return score(query, key)

    return cast


def _checked_bias(
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
    if is_whole and isinstance(tile, Tensor) and tile.is_floating_point() and broadcasts(tile.shape, wanted):
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
    if isinstance(score, Score) and not score.can_round_tokens:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if is_cast(tensor) else tensor


def _place_bias(bias: Bias, shape: tuple[int, ...], device: torch.device) -> Bias:
    if not isinstance(bias, Tensor):
        if callable(bias):
            return _checked_bias(bias, shape[:-2])
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
    if not broadcasts(bias.shape, shape):
        raise RegardError(
            "bias",
            got=f"shape {tuple(bias.shape)}",
            needed=f"a shape that broadcasts to (*batch, queries, keys) = {shape}",
            repair="Give size 1 to the axes it is shared over.",
        )
    return bias.reshape((1,) * (len(shape) - bias.ndim) + bias.shape)


def _add_biases(biases: Sequence[Bias], first_query: int) -> Bias:
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
