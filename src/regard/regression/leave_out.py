"""What is predicted for each observation from the others."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.smoother import Smoother


class LeftOut(NamedTuple):
    """mean: (keys, outputs), predicted without the row itself. alone: (keys,), True where its window was empty."""

    mean: Tensor
    alone: Tensor


def predict(smoother: Smoother, exclude: int = 0) -> LeftOut:
    """Predict every row without itself and without `exclude` rows on each side of it.

    A row of weight w leaves out min(w, 1) of itself. A row with no other in its window is predicted by the mean of
    all the others.
    """
    if smoother.degree == 0:
        pooled = smoother.pool_left_out(exclude)
        mean, alone = pooled.mean, pooled.log_mass.isneginf()
    elif exclude == 0 and not smoother.adapts:
        mean, alone = _line_by_leverage(smoother)
    else:
        key = smoother.data.key
        lines = hat_matrix.local_lines(smoother, key, torch.arange(len(key), device=key.device), exclude)
        mean, alone = lines.mean, lines.lost
    if bool(alone.any()):
        mean = torch.where(alone.unsqueeze(-1), mean_of_others(smoother, exclude), mean)
    return LeftOut(mean, alone)


def _line_by_leverage(smoother: Smoother) -> LeftOut:
    """Of a least squares line, the residual without a row is the residual over 1 - leverage.

    Where the row holds nearly all of its own line the quotient has no digits left: there the row is taken out of the
    sums instead.
    """
    data = smoother.data
    fit = smoother.fit(data.key)
    left_out = fit.leverage if data.weight is None else fit.leverage * data.weight.clamp(max=1)
    rest = 1 - left_out
    unsafe = rest < torch.finfo(rest.dtype).eps ** 0.4
    residual = (data.value - fit.mean) / torch.where(unsafe, 1.0, rest).unsqueeze(-1).to(data.value.dtype)
    mean, alone = data.value - residual, torch.zeros_like(unsafe)
    rows = unsafe.nonzero().flatten()
    if len(rows):
        lines = hat_matrix.local_lines(smoother, data.key[rows], rows)
        mean, alone = mean.index_copy(0, rows, lines.mean), alone.index_copy(0, rows, lines.lost)
    return LeftOut(mean, alone)


def mean_of_others(smoother: Smoother, exclude: int) -> Tensor:
    """(keys, outputs): for each row the mean of all rows that it does not leave out."""
    value, weight = smoother.data.value, smoother.data.weight
    weight = torch.ones_like(value[:, 0]) if weight is None else weight
    if exclude == 0:
        out = weight.clamp(max=1)
        left_out_value, left_out_weight = out.unsqueeze(-1) * value, out
    else:
        rows = torch.arange(len(value), device=value.device)
        first, last = (rows - exclude).clamp(min=0), (rows + exclude).clamp(max=len(value) - 1) + 1
        left_out_value = _between(weight.unsqueeze(-1) * value, first, last)
        left_out_weight = _between(weight, first, last)
    rest = weight.sum() - left_out_weight
    if not bool((rest > 1e-6 * weight.sum()).all()):
        raise RegardError(
            "exclude",
            got=f"{exclude} for {len(value)} rows",
            needed="an observation left over to predict each row from",
            repair="Leave out fewer rows, or pass a number as bandwidth.",
        )
    total = (weight.unsqueeze(-1) * value).sum(0)
    return (total - left_out_value) / rest.unsqueeze(-1)


def _between(rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The sums of rows[first:last]."""
    sums = torch.cat([torch.zeros_like(rows[:1]), rows.cumsum(0)])
    return sums[last] - sums[first]
