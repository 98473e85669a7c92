"""Noise variance, confidence bands and derivatives of a fitted curve.

At x the estimate is sum_j l_j(x) y_j, so its variance is sum_j l_j(x)^2 sigma_j^2, and the noise variance sigma_j^2 is
estimated from residuals. The residual of row j has the variance sigma^2 (1 - 2 l_jj + sum_k l_jk^2) if sigma is the
same around it: dividing by that factor makes its square an unbiased estimate, up to the square of the bias.
"""

from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import ndtri

from regard import Mask, inspect
from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.bandwidth_search import check_counts
from regard.regression.hat_matrix import nearby_keys
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Observations, PoolTask, can_square, pool, pool_squared
from regard.regression.sums.all_pairs import as_score
from regard.scores.kernels import KERNELS

# Far away both log masses are large: where their rounding reaches this, their difference has no digits left.
MAX_ROUNDING = 1e-4


class Band(NamedTuple):
    """A confidence band, shaped like a prediction.

    Attributes:
        mean: the estimate at each query.
        lower: the lower end of the band.
        upper: the upper end.
        standard_error: the standard error of the estimate.
    """

    mean: Any
    lower: Any
    upper: Any
    standard_error: Any


def quantile(level: float) -> float:
    """Return how many standard errors on each side contain this share of a normal distribution."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise RegardError("level", got=repr(level), needed="a number between 0 and 1", repair="Pass level=0.95.")
    return float(ndtri(torch.tensor((1 + float(level)) / 2, dtype=torch.float64, device="cpu")))


def noise_variance(smoother: Smoother, variance: str) -> Tensor:
    """Return the estimated variance of the noise of each observation, (rows, outputs).

    Args:
        smoother: the curve.
        variance: "global": one number for all rows. "local": squared residuals and their factors, smoothed with the
            same kernel, so that it follows a noise that changes with x. Where the curve passes through all observations
            of a window, its residuals tell nothing, and the global number is taken.

    Raises:
        RegardError: if the curve passes through all observations, or `variance` is neither.
    """
    if variance not in ("local", "global"):
        raise RegardError(
            "variance",
            got=repr(variance),
            needed='"local" or "global"',
            repair='Pass "global" where the noise is the same everywhere.',
        )
    data = smoother.data
    fit = smoother.fit(data.key)
    squared = (data.value - fit.mean).square()
    one = torch.ones_like(data.value[:, :1])
    factor = 1 - 2 * fit.leverage + estimator_variance(smoother, data.key, fit.log_mass, one)[:, 0]
    factor = factor.clamp(min=0).to(squared.dtype).unsqueeze(-1)
    mean_factor = smoother.weighted_mean(factor)
    if float(mean_factor) * smoother.total_weight() < 1e-6:
        check_counts(smoother)
        raise RegardError(
            "bandwidth",
            got="a curve that passes through all observations",
            needed="residuals from which the noise can be estimated",
            repair="Widen the bandwidth, or fit more rows.",
        )
    everywhere = (smoother.weighted_mean(squared) / mean_factor).to(squared.dtype).repeat(len(squared), 1)
    if variance == "global":
        return everywhere
    # A quotient of sums, not a sum of quotients: where the curve nearly interpolates a row, both its residual and its
    # factor are tiny.
    both = replace(smoother, data=replace(data, value=torch.cat([squared, factor], -1)), degree=0)
    pooled = both.pool(data.key).mean
    known = pooled[:, -1:] > 1e-6
    # Sums of squares that cancel to nothing may come out below 0 by a rounding.
    return torch.where(known, pooled[:, :-1].clamp(min=0) / torch.where(known, pooled[:, -1:], 1.0), everywhere)


def estimator_variance(smoother: Smoother, query: Tensor, log_mass: Tensor, sigma2: Tensor) -> Tensor:
    """Return sum_j l_j^2 sigma_j^2 at each query, (queries, outputs); a row of weight w counts as w observations.

    Where sums of the squared kernel take no longer than those of the kernel, sigma_j^2 is pooled with it; otherwise,
    and far away, the sum is computed from rows of the hat matrix.

    Args:
        smoother: the curve.
        query: (queries, dim), in the coordinates of the keys.
        log_mass: (queries,), that of the estimate.
        sigma2: (rows, outputs), the variance of the noise.
    """
    task = smoother.task(query)
    if smoother.degree == 1:
        exact = task.kernel.square is None
        return _variance_by_rows(smoother, task, sigma2) if exact else _variance_of_lines(smoother, task, sigma2)
    if not can_square(task):
        return _variance_by_rows(smoother, task, sigma2)
    pooled = pool_squared(task._replace(data=replace(smoother.data, value=sigma2)))
    inside = log_mass.isfinite()
    share = torch.where(inside, (pooled.log_mass - 2 * torch.where(inside, log_mass, 0.0)).exp(), 0.0)
    variance = pooled.mean.clamp(min=0) * share.to(sigma2.dtype).unsqueeze(-1)
    far = (inside & _is_far(log_mass)).nonzero().flatten()
    variance[far] = _variance_by_rows(smoother, hat_matrix.take_queries(task, far), sigma2)
    return variance


def _variance_of_lines(smoother: Smoother, task: PoolTask, sigma2: Tensor) -> Tensor:
    """Return the same for local lines, from moments of the squared kernel.

    With u = k - q, its mean m and covariance C under the weights p of eq. 4, a line has the weights
    l_j = p_j (1 - m'C^-1 (u_j - m)) = p_j (a + b'u_j). So of f^2 sigma^2 the sum and two moments are needed.
    """
    data = smoother.data
    pooled = pool(task._replace(moments=True))
    assert pooled.moments is not None
    inverse, accurate = hat_matrix.covariance_inverse(pooled.moments)
    slope = -(inverse @ pooled.moments.first.unsqueeze(-1)).squeeze(-1)
    constant = 1 - (slope * pooled.moments.first).sum(-1)
    inside = pooled.log_mass.isfinite()
    result = torch.zeros(len(task.query), sigma2.shape[-1], dtype=sigma2.dtype, device=sigma2.device)
    for output, variance in enumerate(sigma2.T):
        weight = variance if data.weight is None else variance * data.weight
        positive = weight > 0
        if not bool(positive.any()):
            continue
        weighted = Observations(data.key[positive], data.value[positive], weight[positive])
        squares = pool_squared(task._replace(data=weighted, moments=True))
        assert squares.moments is not None
        first, second, _ = squares.moments
        square = constant.square() + 2 * constant * (slope * first).sum(-1)
        square += torch.einsum("qd,qde,qe->q", slope, second, slope)
        share = torch.where(inside, (squares.log_mass - 2 * torch.where(inside, pooled.log_mass, 0.0)).exp(), 0.0)
        result[:, output] = (square.clamp(min=0) * share).to(sigma2.dtype)
    rows = (inside & (~accurate | _is_far(pooled.log_mass))).nonzero().flatten()
    result[rows] = _variance_by_rows(smoother, hat_matrix.take_queries(task, rows), sigma2)
    return result


def _is_far(log_mass: Tensor) -> Tensor:
    """Return whether a mass is so small that its logarithm has lost the digits that tell masses apart, (queries,)."""
    return log_mass.abs() * torch.finfo(log_mass.dtype).eps > MAX_ROUNDING


def _variance_by_rows(smoother: Smoother, task: PoolTask, sigma2: Tensor) -> Tensor:
    """Return sum_j l_j^2 sigma_j^2 from rows of the hat matrix, (queries, outputs)."""
    weight = smoother.data.weight
    per_observation = sigma2 if weight is None else sigma2 / weight.unsqueeze(-1)
    result = sigma2.new_zeros(len(task.query), sigma2.shape[-1])
    for some, block in nearby_keys(task):
        squared = hat_matrix.hat_rows(hat_matrix.take_queries(task, some), smoother.degree, block).weight.square()
        if block.row.ndim == 1:
            result[some] = squared @ per_observation[block.row]
        else:
            result[some] = torch.einsum("qk,qko->qo", squared, per_observation[block.row])
    return result


# --- Derivatives -------------------------------------------------------------------------------------------------


def derivative(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivative of the estimate at degree 0, exactly, and the log mass.

    A kernel with a kink (Laplacian, triangular) counts a key at the query as flat: this is the middle of the two
    one-sided derivatives.

    Args:
        smoother: the curve.
        query: (queries, dim), in the coordinates of the keys.

    Returns:
        The derivative (queries, dim, outputs), 0 in an empty window, and the log mass (queries,).

    Raises:
        RegardError: if the kernel is flat, or the bandwidth changes with the query.
    """
    _check_derivative(smoother)
    if smoother.kernel == "gaussian":
        return _derivative_of_gaussian(smoother, query)
    return _derivative_by_pairs(smoother, query)


def _derivative_of_gaussian(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """Return it from moments: log f has the derivative (k - q) / width^2, so it is a covariance of keys and values."""
    value = smoother.data.value
    pooled = pool(smoother.task(query)._replace(moments=True, tolerance=None))
    assert pooled.moments is not None
    first, _, cross = pooled.moments
    width = torch.as_tensor(smoother.width, dtype=first.dtype, device=first.device)
    slope = (cross - first.unsqueeze(-1) * pooled.mean.unsqueeze(-2)) / width.square().reshape(-1, 1)
    slope = slope.to(value.dtype)
    _, accurate = hat_matrix.covariance_inverse(pooled.moments)
    rows = (~accurate & pooled.log_mass.isfinite()).nonzero().flatten()
    if len(rows):
        slope = slope.index_copy(0, rows, _derivative_by_pairs(smoother, query[rows])[0])
    return slope, pooled.log_mass


def _derivative_by_pairs(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """Return it by differentiating the estimate."""
    value, outputs = smoother.data.value, smoother.outputs
    task = smoother.task(query.detach())
    score = as_score(task.kernel, task.width)
    slope, log_mass = value.new_zeros(*query.shape, outputs), value.new_zeros(len(query))
    for some, block in nearby_keys(task):
        data, bias, mask = block.data, None if block.data.weight is None else block.data.weight.log(), None
        with torch.enable_grad():
            point = query[some].detach().requires_grad_()
            asked = point
            if block.padding is not None:
                # A table of keys: each query is a batch of its own.
                asked, mask = point.unsqueeze(1), Mask.drop(block.padding.unsqueeze(1))
            bias = None if bias is None else bias.unsqueeze(-2)
            record = inspect(asked, data.key, data.value, score=score, bias=bias, mask=mask)
            mean = record.output.reshape(len(some), outputs)
            # Each query's estimate depends on its own position only, so the gradient of the sum holds every derivative.
            for output in range(outputs):
                (gradient,) = torch.autograd.grad(mean[:, output].sum(), point, retain_graph=True)
                slope[some, :, output] = gradient
        log_mass[some] = record.log_mass.detach().reshape(len(some)).to(log_mass.dtype)
    return slope, log_mass


def _check_derivative(smoother: Smoother) -> None:
    if not KERNELS[smoother.kernel].is_differentiable:
        raise RegardError(
            "kernel",
            got=repr(smoother.kernel),
            needed="a kernel whose value changes with the distance",
            repair="A boxcar estimate is a step function, its derivative 0 almost everywhere: use another kernel, "
            "or degree=1.",
        )
    if isinstance(smoother.width, Nearest):
        raise RegardError(
            "bandwidth",
            got=repr(smoother.width),
            needed="a width that does not change with the query",
            repair="The distance to the k-th neighbour has kinks where neighbours change: pass a number, or degree=1.",
        )
