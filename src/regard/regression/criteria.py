"""How well a curve predicts: leave-one-out, AICc and generalised cross-validation, at one bandwidth or at many.

Weights count repetitions in every criterion.

Searching a bandwidth over a few thousand rows is limited by the number of calls, not by their work, so
`evaluate_many` computes the criterion at many bandwidths in one call. Wide Gaussians share one grid (binning,
`binned_leave_one_out`). Otherwise copies of the data are placed side by side on one line, each in units of its
bandwidth, and further apart than they are long, so that no row has its nearest key, or any mass, in another copy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations

# Residuals below this many ulps of y count as zero; a criterion made of them would choose a bandwidth by chance.
ULPS = 4


class Criterion(NamedTuple):
    """A criterion at one bandwidth.

    Attributes:
        value: a tensor without axes, the smaller the better; differentiable.
        isolated: the number of rows without any other in their window.
    """

    value: Tensor
    isolated: int = 0


CriterionFunction = Callable[[Smoother, int], Criterion]


def loo(smoother: Smoother, exclude: int) -> Criterion:
    """Return the mean squared error of predicting each observation from the others."""
    return _loo(smoother, leave_one_out(smoother, exclude))


def aicc(smoother: Smoother, exclude: int) -> Criterion:
    """Return the corrected criterion of Akaike, log s2 + 1 + 2 (tr + 1) / (n - tr - 2).

    s2 is the mean squared residual, tr the trace of the hat matrix; with several outputs log s2 is averaged.

    References:
        C. Hurvich, J. Simonoff and C.-L. Tsai, Journal of the Royal Statistical Society B 60 (1998).
    """
    del exclude
    fit = smoother.fit(smoother.data.key)
    return _aicc(smoother, fit.mean, fit.leverage)


def gcv(smoother: Smoother, exclude: int) -> Criterion:
    """Return generalised cross-validation, s2 / (1 - tr / n)^2; infinite if less than one degree of freedom is left."""
    del exclude
    fit = smoother.fit(smoother.data.key)
    return _gcv(smoother, fit.mean, fit.leverage)


CRITERIA: dict[str, CriterionFunction] = {"loo": loo, "aicc": aicc, "gcv": gcv}


def degrees_of_freedom(smoother: Smoother) -> float:
    """Return the trace of the hat matrix: how many parameters the curve is worth."""
    return float(smoother.weighted_mean(smoother.fit(smoother.data.key).leverage) * smoother.total_weight())


def _loo(smoother: Smoother, predicted: "LeaveOneOut") -> Criterion:
    return Criterion(_mean_squares(smoother, predicted.mean).mean(), int(predicted.isolated.sum()))


def _aicc(smoother: Smoother, mean: Tensor, leverage: Tensor) -> Criterion:
    errors, n = _mean_squares(smoother, mean), smoother.total_weight()
    trace = smoother.weighted_mean(leverage) * n
    if n - float(trace.detach()) <= 2 or float(errors.detach().min()) <= 0:
        return Criterion(errors.new_tensor(math.inf).mean())
    return Criterion(errors.log().mean() + 1 + 2 * (trace + 1) / (n - trace - 2))


def _gcv(smoother: Smoother, mean: Tensor, leverage: Tensor) -> Criterion:
    errors, n = _mean_squares(smoother, mean), smoother.total_weight()
    trace = smoother.weighted_mean(leverage) * n
    if n - float(trace.detach()) < 1:
        return Criterion(errors.new_tensor(math.inf).mean())
    return Criterion(errors.mean() / (1 - trace / n) ** 2)


def _mean_squares(smoother: Smoother, mean: Tensor) -> Tensor:
    """Return the mean squared residual of each output, (outputs,)."""
    value = smoother.data.value
    errors = smoother.weighted_mean((value.double() - mean.double()).square())
    value = value.detach()
    rounding = ULPS * torch.finfo(value.dtype).eps * value.abs().amax(0).double()
    return torch.where(errors > rounding.square(), errors, 0.0 * errors)


# --- Leave-one-out -----------------------------------------------------------------------------------------------


class LeaveOneOut(NamedTuple):
    """Every row predicted from the others.

    Attributes:
        mean: (rows, outputs).
        isolated: (rows,), whether no other row was in the window.
    """

    mean: Tensor
    isolated: Tensor


def leave_one_out(smoother: Smoother, exclude: int = 0) -> LeaveOneOut:
    """Predict every row without itself and without `exclude` rows on each side of it.

    A row of weight w leaves out min(w, 1) of itself. An isolated row is predicted by the mean of all the others.
    """
    found = _from_windows(smoother, exclude)
    if bool(found.isolated.any()):
        mean = torch.where(found.isolated.unsqueeze(-1), mean_of_others(smoother, exclude), found.mean)
        found = LeaveOneOut(mean, found.isolated)
    return found


def _from_windows(smoother: Smoother, exclude: int) -> LeaveOneOut:
    """Predict every row that is not isolated."""
    if smoother.degree == 0:
        pooled = smoother.pool_left_out(exclude)
        return LeaveOneOut(pooled.mean, pooled.log_mass.isneginf())
    key, rows = smoother.data.key, smoother.rows()
    width = smoother.width_for(key, rows, exclude)
    if exclude == 0:
        return _by_leverage(smoother, width)
    lines = hat_matrix.local_lines(smoother.task(key, width)._replace(leave_out=exclude), rows)
    return LeaveOneOut(lines.mean, lines.needs_exact)


def _by_leverage(smoother: Smoother, width: float | Tensor) -> LeaveOneOut:
    """Predict by the residuals of lines: without a row, its residual is the residual divided by 1 - leverage.

    A row that has nearly all the weight of its line leaves no digits in the quotient: such lines are computed anew
    without it.
    """
    data = smoother.data
    fit = smoother.fit(data.key, width)
    left_out = fit.leverage if data.weight is None else fit.leverage * data.weight.clamp(max=1)
    rest = 1 - left_out
    needs_exact = rest < torch.finfo(rest.dtype).eps ** 0.4
    residual = (data.value - fit.mean) / torch.where(needs_exact, 1.0, rest).unsqueeze(-1).to(data.value.dtype)
    mean, isolated = data.value - residual, torch.zeros_like(needs_exact)
    rows = needs_exact.nonzero().flatten()
    if len(rows):
        task = hat_matrix.take_queries(smoother.task(data.key, width)._replace(leave_out=0), rows)
        lines = hat_matrix.local_lines(task, rows)
        mean, isolated = mean.index_copy(0, rows, lines.mean), isolated.index_copy(0, rows, lines.needs_exact)
    return LeaveOneOut(mean, isolated)


def mean_of_others(smoother: Smoother, exclude: int) -> Tensor:
    """Return the mean of all rows that each row does not leave out, (rows, outputs)."""
    value, weight = smoother.data.value, smoother.data.weight
    weight = torch.ones_like(value[:, 0]) if weight is None else weight
    if exclude == 0:
        left_out_weight = weight.clamp(max=1)
        left_out_value = left_out_weight.unsqueeze(-1) * value
    else:
        rows = smoother.rows()
        first, after = (rows - exclude).clamp(min=0), (rows + exclude).clamp(max=len(value) - 1) + 1
        left_out_value = _sums_between(weight.unsqueeze(-1) * value, first, after)
        left_out_weight = _sums_between(weight, first, after)
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


def _sums_between(numbers: Tensor, first: Tensor, after: Tensor) -> Tensor:
    """Return the sums of numbers[first:after]."""
    sums = torch.cat([torch.zeros_like(numbers[:1]), numbers.cumsum(0)])
    return sums[after] - sums[first]


# --- Many bandwidths in one call ---------------------------------------------------------------------------------

# Distance between two copies in bandwidths, besides their lengths: a Gaussian that far away is 0.
GAP = 60.0
# A scan of bandwidths says where to look; the best one is computed again.
SCAN_TOLERANCE = 1e-8
# A scanned criterion is trusted only if its largest residual is at least this many times SCAN_TOLERANCE times the
# range of the values.
MIN_RESIDUAL = 1e3
# Rows of all copies in one call: more of them leave the cache.
ROWS_PER_CALL = 2**13
# Predictions of all rows at all bandwidths on one grid: a few temporaries of 16 MiB.
NUMBERS_PER_CALL = 2**21


def can_evaluate_many(smoother: Smoother, exclude: int) -> bool:
    """Whether `evaluate_many` supports the data: one dimension, and each row leaves out at most itself."""
    return exclude == 0 and smoother.data.is_sortable


def evaluate_many(smoother: Smoother, criterion: str, widths: Sequence[float]) -> list[Criterion | None]:
    """Return the criterion at each bandwidth, to the tolerance of a scan; None where that is not accurate enough."""
    binned = criterion == "loo" and smoother.degree == 0 and smoother.kernel == "gaussian"
    found: dict[float, Criterion | None] = {}
    if binned:
        found.update(_evaluate_binned(smoother, widths))
    left = [width for width in widths if width not in found]
    found.update(zip(left, _evaluate_copies(smoother, criterion, left), strict=True))
    return [found[width] for width in widths]


def _evaluate_binned(smoother: Smoother, widths: Sequence[float]) -> Iterator[tuple[float, Criterion]]:
    """Yield those of the bandwidths that are wide enough for a grid, with their criterion."""
    per_call = max(NUMBERS_PER_CALL // smoother.data.value.numel(), 1)
    for start in range(0, len(widths), per_call):
        part = widths[start : start + per_call]
        mean, accurate = binned_leave_one_out(smoother.data, part)
        errors = (smoother.data.value.double() - mean).square_()
        for width, error, is_accurate in zip(part, errors, accurate, strict=True):
            if is_accurate:
                yield width, Criterion(smoother.weighted_mean(error).mean())


def _evaluate_copies(smoother: Smoother, criterion: str, widths: Sequence[float]) -> list[Criterion | None]:
    if not widths:
        return []
    # Copies of sorted rows are in the order of their line, which then needs no sorting.
    smoother = replace(smoother, data=smoother.data.take(smoother.data.sorted.order.long()))
    per_call = max(ROWS_PER_CALL // len(smoother.data.key), 1)
    parts = [widths[start : start + per_call] for start in range(0, len(widths), per_call)]
    return [found for part in parts for found in _evaluate_together(smoother, criterion, part)]


def _evaluate_together(smoother: Smoother, criterion: str, widths: Sequence[float]) -> list[Criterion | None]:
    """Return the criterion at bandwidths whose copies share one call."""
    (key, value, weight), copies = (smoother.data.key, smoother.data.value, smoother.data.weight), len(widths)
    line = _side_by_side(key[:, 0].double(), torch.tensor(widths, dtype=torch.float64, device=key.device))
    weight = None if weight is None else weight.double().repeat(copies)
    data = Observations(line.reshape(-1, 1), value.double().repeat(copies, 1), weight)
    whole = Smoother(data, smoother.kernel, 1.0, smoother.degree, SCAN_TOLERANCE)
    if criterion == "loo":
        means, isolated = (numbers.unflatten(0, (copies, -1)) for numbers in _from_windows(whole, 0))
        if bool(isolated.any()):
            means = torch.where(isolated.unsqueeze(-1), mean_of_others(smoother, 0).double(), means)
        found = [_loo(smoother, LeaveOneOut(*one)) for one in zip(means, isolated, strict=True)]
    else:
        fit, function = whole.fit(data.key), {"aicc": _aicc, "gcv": _gcv}[criterion]
        means, leverages = (numbers.unflatten(0, (copies, -1)) for numbers in (fit.mean, fit.leverage))
        found = [function(smoother, mean, leverage) for mean, leverage in zip(means, leverages, strict=True)]
    # Where the curve passes through nearly all observations, residuals are as small as the error of the scan.
    residuals = (value.double() - means).abs().amax(1)
    smallest = MIN_RESIDUAL * SCAN_TOLERANCE * (value.amax(0) - value.amin(0)).double()
    accurate = (residuals >= smallest).all(-1).tolist()
    return [one if is_accurate else None for one, is_accurate in zip(found, accurate, strict=True)]


def _side_by_side(key: Tensor, width: Tensor) -> Tensor:
    """Return the keys in units of each bandwidth, one copy after the other: (widths, rows)."""
    low = key.min()
    length = (key.max() - low) / width
    longer = torch.maximum(length[:-1], length[1:])
    start = torch.cat([length.new_zeros(1), (length[:-1] + longer + GAP).cumsum(0)])
    return (key - low) / width.unsqueeze(-1) + start.unsqueeze(-1)


# --- Binning -----------------------------------------------------------------------------------------------------

GRID_SIZE = 2**12
NODES = 12
# Narrower Gaussians are not accurate on the grid, so their sums are not computed.
MIN_NODES_PER_WIDTH = 4
# Rounding of Fourier transforms, as a share of all weight.
FFT_ROUNDING = 1e-14
# Error of a mean that counts as accurate, as a share of the range of the values.
BINNING_TOLERANCE = 1e-6


def binned_leave_one_out(data: Observations, widths: Sequence[float]) -> tuple[Tensor, list[bool]]:
    """Predict every row from the others with Gaussians of many bandwidths, by binning; keys have one dimension.

    Rows spread their weights over the grid nodes around them by Lagrange's weights, once for all bandwidths. Between
    nodes the kernel is a convolution, computed by Fourier transforms, and each row reads its sums off the same nodes by
    the same weights.

    Error: interpolating a Gaussian that has m nodes per bandwidth by 12 of them is off by at most 0.58 m^-12
    (Lagrange's formula, with 10,395 as the largest 12th derivative). That happens twice, to the key and to the row,
    whose weights sum to at most 2 in absolute value. So a sum is off by less than 1.8 m^-12, and some roundings, times
    all weight; a mean by that over the weight that its row sees.

    Returns:
        The predictions (widths, rows, outputs), and at which bandwidths they are accurate to BINNING_TOLERANCE.

    References:
        B. Silverman, Kernel density estimation using the fast Fourier transform, Applied Statistics 31 (1982).
    """
    key, value = data.key[:, 0].double(), data.value.double()
    weight = torch.ones_like(key) if data.weight is None else data.weight.double()
    step = float(key.max() - key.min()) / (GRID_SIZE - NODES)
    mean = value.new_zeros(len(widths), *value.shape)
    if step == 0:
        return mean, [False] * len(widths)
    nodes_per_width = torch.tensor(widths, dtype=torch.float64, device=key.device) / step
    wide = nodes_per_width >= MIN_NODES_PER_WIDTH
    if not bool(wide.any()):
        return mean, [False] * len(widths)
    nodes_per_width = nodes_per_width[wide]
    node, factor = _lagrange((key - key.min()) / step)
    centre = value.mean(0)
    masses = weight * torch.cat([torch.ones_like(key).unsqueeze(0), (value - centre).T])
    sums = _read(_convolved(_spread(masses, node, factor), nodes_per_width), node, factor)
    sums -= masses * (weight.clamp(max=1) / weight)
    mass = sums[:, 0]
    accurate = wide.clone()
    error = 1.8 * nodes_per_width**-NODES + FFT_ROUNDING
    accurate[wide] = mass.amin(-1) * BINNING_TOLERANCE >= weight.sum() * error
    mean[wide] = (sums[:, 1:] / mass.unsqueeze(1)).mT + centre
    return mean, accurate.tolist()


def _lagrange(position: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes around each position, in units of a step, and Lagrange's weights: (NODES, rows) each."""
    first = position.floor().long()
    offsets = torch.arange(NODES, device=position.device).unsqueeze(-1)
    away = (position - first) + (NODES // 2 - 1) - offsets
    # The product of all other distances: of those before times those after.
    one = torch.ones_like(away[:1])
    before = torch.cat([one, away[:-1]]).cumprod(0)
    after = torch.cat([one, away[1:].flip(0)]).cumprod(0).flip(0)
    products = [math.prod(one - other for other in range(NODES) if other != one) for one in range(NODES)]
    between = torch.tensor(products, dtype=torch.float64, device=position.device).unsqueeze(-1)
    return first + offsets, before.mul_(after).div_(between)


def _spread(masses: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """Spread (channels, rows) over the grid: (channels, GRID_SIZE)."""
    given = (masses.unsqueeze(1) * factor).flatten(1)
    return masses.new_zeros(len(masses), GRID_SIZE).index_add_(1, node.flatten(), given)


def _convolved(grid: Tensor, nodes_per_width: Tensor) -> Tensor:
    """Convolve (channels, GRID_SIZE) with a Gaussian of each bandwidth: (widths, channels, GRID_SIZE)."""
    away = torch.arange(GRID_SIZE + 1, device=grid.device, dtype=grid.dtype)
    kernel = (away / nodes_per_width.unsqueeze(-1)).square_().div_(-2).exp_()
    # The transform of an even function is real: that of half of it and its mirror image, without the last node.
    spectrum = torch.fft.rfft(torch.cat([kernel, kernel[:, 1:-1].flip(-1)], -1)).real
    found = torch.fft.irfft(spectrum.unsqueeze(1) * torch.fft.rfft(grid, 2 * GRID_SIZE), 2 * GRID_SIZE)
    return found[..., :GRID_SIZE]


def _read(grids: Tensor, node: Tensor, factor: Tensor) -> Tensor:
    """Read (widths, channels, GRID_SIZE) at the rows: (widths, channels, rows)."""
    sums = grids.new_zeros(*grids.shape[:2], node.shape[1])
    for index, share in zip(node, factor, strict=True):
        sums.addcmul_(grids[..., index], share)
    return sums
