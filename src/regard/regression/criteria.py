"""How well a curve predicts: leave-one-out, AICc and generalised cross-validation, at one bandwidth or at many."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.smoother import Smoother
from regard.regression.sums import Kernel, Observations, pool


class LeftOut(NamedTuple):
    """mean: (keys, outputs), predicted without the row itself. alone: (keys,), True where its window was empty."""

    mean: Tensor
    alone: Tensor


def leave_one_out(smoother: Smoother, exclude: int = 0) -> LeftOut:
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


GRID_SIZE = 2**12
NODES = 12
# Narrower kernels are not promised anything: their sums are not even computed.
FEWEST_NODES_A_WIDTH = 4
# Of sums of Fourier transforms, as a share of all weight.
ROUNDING = 1e-14
# What is promised of a mean, as a share of the range of the values.
BINNING_TOLERANCE = 1e-6


class Binned(NamedTuple):
    """mean: (widths, rows, outputs), each row predicted from the others. sure: (widths,), where TOLERANCE holds."""

    mean: Tensor
    sure: list[bool]


def binned_leave_one_out(data: Observations, widths: Sequence[float]) -> Binned:
    """Pool at every row of the line the rows without min(weight, 1) of itself; data.key is (rows, 1)."""
    key, value = data.key[:, 0].double(), data.value.double()
    weight = torch.ones_like(key) if data.weight is None else data.weight.double()
    step = float(key.max() - key.min()) / (GRID_SIZE - NODES)
    nodes_a_width = torch.tensor(widths, dtype=torch.float64, device=key.device) / step
    wide = nodes_a_width >= FEWEST_NODES_A_WIDTH
    mean = value.new_zeros(len(widths), *value.shape)
    if step == 0 or not bool(wide.any()):
        return Binned(mean, [False] * len(widths))
    nodes_a_width = nodes_a_width[wide]
    node, factor = _around((key - key.min()) / step)
    centre = value.mean(0)
    masses = weight * torch.cat([torch.ones_like(key).unsqueeze(0), (value - centre).T])
    sums = _read(_convolved(_spread(masses, node, factor), nodes_a_width), node, factor)
    sums -= masses * (weight.clamp(max=1) / weight)
    seen = sums[:, 0]
    sure = wide.clone()
    off = 1.8 * nodes_a_width**-NODES + ROUNDING
    sure[wide] = seen.amin(-1) * BINNING_TOLERANCE >= weight.sum() * off
    mean[wide] = (sums[:, 1:] / seen.unsqueeze(1)).mT + centre
    return Binned(mean, sure.tolist())


def _around(place: Tensor) -> tuple[Tensor, Tensor]:
    """The nodes around each place, in units of a step, and Lagrange's weights: (NODES, rows) each."""
    first = place.floor().long()
    offsets = torch.arange(NODES, device=place.device).unsqueeze(-1)
    away = (place - first) + (NODES // 2 - 1) - offsets
    # The product of all other distances: of those before times those after.
    one = torch.ones_like(away[:1])
    before = torch.cat([one, away[:-1]]).cumprod(0)
    after = torch.cat([one, away[1:].flip(0)]).cumprod(0).flip(0)
    factor = before.mul_(after).div_(_between_nodes().to(place.device))
    return first + offsets, factor


def _between_nodes() -> Tensor:
    """The products of the distances from each node to all others, (NODES, 1)."""
    products = [math.prod(one - other for other in range(NODES) if other != one) for one in range(NODES)]
    return torch.tensor(products, dtype=torch.float64).unsqueeze(-1)


def _spread(masses: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """(channels, rows) -> (channels, SIZE)."""
    given = (masses.unsqueeze(1) * factor).flatten(1)
    return masses.new_zeros(len(masses), GRID_SIZE).index_add_(1, node.flatten(), given)


def _convolved(grid: Tensor, nodes_a_width: Tensor) -> Tensor:
    """(channels, SIZE) with a Gaussian of each width -> (widths, channels, SIZE)."""
    away = torch.arange(GRID_SIZE + 1, device=grid.device, dtype=grid.dtype)
    kernel = (away / nodes_a_width.unsqueeze(-1)).square_().div_(-2).exp_()
    # The transform of an even function is real: that of half of it and its mirror image, without the last node.
    spectrum = torch.fft.rfft(torch.cat([kernel, kernel[:, 1:-1].flip(-1)], -1)).real
    found = torch.fft.irfft(spectrum.unsqueeze(1) * torch.fft.rfft(grid, 2 * GRID_SIZE), 2 * GRID_SIZE)
    return found[..., :GRID_SIZE]


def _read(grids: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """(widths, channels, SIZE) -> (widths, channels, rows)."""
    sums = grids.new_zeros(*grids.shape[:2], node.shape[1])
    for index, share in zip(node, factor, strict=True):
        sums.addcmul_(grids[..., index], share)
    return sums


# A curve that is as near to the observations as so many of their roundings passes through them.
ROUNDINGS = 4


class Criterion(NamedTuple):
    """value: a tensor without axes, the smaller the better; differentiable. alone: rows without a neighbour."""

    value: Tensor
    alone: int = 0


CriterionFunction = Callable[[Smoother, int], Criterion]


def loo(smoother: Smoother, exclude: int) -> Criterion:
    """The mean squared error of predicting each observation from the others."""
    predicted = leave_one_out(smoother, exclude)
    residual = smoother.data.value.double() - predicted.mean.double()
    errors = _beyond_rounding(smoother.average(residual.square()), smoother)
    return Criterion(errors.mean(), int(predicted.alone.sum()))


def aicc(smoother: Smoother, exclude: int) -> Criterion:
    """Akaike's criterion, corrected (Hurvich, Simonoff and Tsai 1998): log s2 + 1 + 2 (tr + 1) / (n - tr - 2).

    s2 is the mean squared residual, tr the trace of the hat matrix; of several outputs log s2 is the average.
    """
    del exclude
    n, trace, errors = _in_sample(smoother)
    if n - float(trace.detach()) <= 2 or float(errors.detach().min()) <= 0:
        return Criterion(errors.new_tensor(math.inf).mean())
    return Criterion(errors.log().mean() + 1 + 2 * (trace + 1) / (n - trace - 2))


def gcv(smoother: Smoother, exclude: int) -> Criterion:
    """Generalised cross-validation: s2 / (1 - tr / n)^2. A fit that leaves less than one degree is not considered."""
    del exclude
    n, trace, errors = _in_sample(smoother)
    if n - float(trace.detach()) < 1:
        return Criterion(errors.new_tensor(math.inf).mean())
    return Criterion(errors.mean() / (1 - trace / n) ** 2)


CRITERIA: dict[str, CriterionFunction] = {"loo": loo, "aicc": aicc, "gcv": gcv}


def degrees_of_freedom(smoother: Smoother) -> float:
    """The trace of the hat matrix: how many parameters the curve is worth."""
    return float(_in_sample(smoother)[1])


def _in_sample(smoother: Smoother) -> tuple[float, Tensor, Tensor]:
    """Observations, trace of the hat matrix, mean squared residual of each output."""
    fit = smoother.fit(smoother.data.key)
    errors = smoother.average((smoother.data.value.double() - fit.mean.double()).square())
    errors = _beyond_rounding(errors, smoother)
    n = smoother.total()
    return n, smoother.average(fit.leverage) * n, errors


def _beyond_rounding(errors: Tensor, smoother: Smoother) -> Tensor:
    """(outputs,), with 0 for what is no more than the rounding of y, which would choose a width by chance."""
    value = smoother.data.value.detach()
    rounding = ROUNDINGS * torch.finfo(value.dtype).eps * value.abs().amax(0).double()
    return torch.where(errors > rounding.square(), errors, 0.0 * errors)


# Widths between two copies, besides their lengths: a Gaussian that far away is 0.
GAP = 60.0
# A scan says where to look; what is found there is judged again.
TOLERANCE = 1e-8
# Rows of all copies in one call: more of them leave the cache, and gain nothing.
MOST_ROWS = 2**13
# Predictions of all rows at all widths on one grid: a few temporaries of 16 MiB.
MOST_NUMBERS = 2**21


def can_evaluate_many(smoother: Smoother, criterion: str, exclude: int) -> bool:
    """Whether the rows are numbers, pooled by local means, each leaving out itself only."""
    return criterion == "loo" and exclude == 0 and smoother.degree == 0 and smoother.data.key.shape[-1] == 1


def evaluate_many(smoother: Smoother, widths: Sequence[float]) -> list[Criterion]:
    """The criterion of leave-one-out at each width, to the tolerance of a scan."""
    found = dict(_evaluate_binned(smoother, widths)) if smoother.kernel == "gaussian" else {}
    left = [width for width in widths if width not in found]
    found.update(zip(left, _evaluate_copies(smoother, left), strict=True))
    return [found[width] for width in widths]


def _evaluate_binned(smoother: Smoother, widths: Sequence[float]) -> Iterator[tuple[float, Criterion]]:
    """Those of the widths that are wide enough for a grid."""
    at_once = max(MOST_NUMBERS // smoother.data.value.numel(), 1)
    for start in range(0, len(widths), at_once):
        part = widths[start : start + at_once]
        mean, sure = binned_leave_one_out(smoother.data, part)
        errors = (smoother.data.value.double() - mean).square_()
        for width, error, is_sure in zip(part, errors, sure, strict=True):
            if is_sure:
                yield width, Criterion(smoother.average(error).mean())


def _evaluate_copies(smoother: Smoother, widths: Sequence[float]) -> list[Criterion]:
    if not widths:
        return []
    # Copies of sorted rows stand in the order of their line, which then needs no sorting.
    key, value, weight = smoother.data
    order = key[:, 0].argsort()
    ordered = Observations(key[order], value[order], None if weight is None else weight[order])
    smoother = replace(smoother, data=ordered)
    at_once = max(MOST_ROWS // len(smoother.data.key), 1)
    parts = [widths[start : start + at_once] for start in range(0, len(widths), at_once)]
    return [judgement for part in parts for judgement in _evaluate_together(smoother, part)]


def _evaluate_together(smoother: Smoother, widths: Sequence[float]) -> list[Criterion]:
    (key, value, weight), copies = smoother.data, len(widths)
    line = _line(key[:, 0].double(), torch.tensor(widths, dtype=torch.float64, device=key.device))
    whole = Observations(
        line.reshape(-1, 1), value.double().repeat(copies, 1), None if weight is None else _repeat(weight, copies)
    )
    pooled = pool(whole.key, whole, Kernel(smoother.kernel, 1.0), exclude=0, tolerance=TOLERANCE)
    mean = pooled.mean.unflatten(0, (copies, -1))
    alone = pooled.log_mass.isneginf().unflatten(0, (copies, -1))
    counts = alone.sum(-1).tolist()
    if any(counts):
        mean = torch.where(alone.unsqueeze(-1), mean_of_others(smoother, 0).double(), mean)
    errors = (value.double() - mean).square()
    return [Criterion(smoother.average(error).mean(), count) for error, count in zip(errors, counts, strict=True)]


def _line(key: Tensor, width: Tensor) -> Tensor:
    """(widths, rows): the keys in units of each width, one copy after the other."""
    low = key.min()
    length = (key.max() - low) / width
    longer = torch.maximum(length[:-1], length[1:])
    start = torch.cat([length.new_zeros(1), (length[:-1] + longer + GAP).cumsum(0)])
    return (key - low) / width.unsqueeze(-1) + start.unsqueeze(-1)


def _repeat(weight: Tensor, copies: int) -> Tensor:
    return weight.double().repeat(copies)
