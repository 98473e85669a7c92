"""Noise variance, confidence bands and derivatives of a fitted curve.

At x the estimate is sum_j l_j(x) y_j, so its variance is sum_j l_j(x)^2 sigma_j^2, and the noise variance sigma_j^2 is
estimated from residuals. The residual of row j has the variance sigma^2 (1 - 2 l_jj + sum_k l_jk^2) where sigma is
the same all around: dividing by that factor makes its square an unbiased estimate, up to the square of the bias.
"""

from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.special import ndtri

from regard import attend
from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.bandwidth_search import check_counts
from regard.regression.hat_matrix import nearby_keys
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Kernel, Observations, can_square, pool_squared, prepare
from regard.regression.sums.all_pairs import as_score
from regard.scores.kernels import KERNELS

# Far away both log masses are large: where their rounding reaches this, their difference has no digits left.
LOST = 1e-4


class Band(NamedTuple):
    """A confidence band: mean, lower, upper and standard_error at each query, shaped like a prediction."""

    mean: Any
    lower: Any
    upper: Any
    standard_error: Any


def quantile(level: float) -> float:
    """How many standard errors on each side hold this share of a normal distribution."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise RegardError("level", got=repr(level), needed="a number between 0 and 1", repair="Pass level=0.95.")
    return float(ndtri(torch.tensor((1 + float(level)) / 2, dtype=torch.float64)))


def noise_variance(smoother: Smoother, variance: str) -> Tensor:
    """(keys, outputs): the estimated variance of the noise of each observation.

    "global": one number for all rows. "local": squared residuals and their factors, smoothed with the same kernel, so
    that it follows a noise that changes with x. Where the curve passes through all observations of a window, its
    residuals say nothing, and the global number is taken.
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
    left = 1 - 2 * fit.leverage + estimator_variance(smoother, data.key, fit.log_mass, one)[:, 0]
    left = left.clamp(min=0).to(squared.dtype).unsqueeze(-1)
    over_all = smoother.average(left)
    if float(over_all) * smoother.total() < 1e-6:
        check_counts(smoother)
        raise RegardError(
            "bandwidth",
            got="a curve that passes through all observations",
            needed="residuals from which the noise can be estimated",
            repair="Widen the bandwidth, or fit more rows.",
        )
    everywhere = (smoother.average(squared) / over_all).to(squared.dtype).repeat(len(squared), 1)
    if variance == "global":
        return everywhere
    # Of sums, not of quotients: a row that the curve nearly interpolates has a tiny residual and a tiny factor.
    both = replace(smoother, data=data._replace(value=torch.cat([squared, left], -1)), degree=0)
    pooled = both.pool(data.key).mean
    known = pooled[:, -1:] > 1e-6
    # Sums of squares that cancel to nothing may come out below 0 by a rounding.
    return torch.where(known, pooled[:, :-1].clamp(min=0) / torch.where(known, pooled[:, -1:], 1.0), everywhere)


def estimator_variance(smoother: Smoother, query: Tensor, log_mass: Tensor, sigma2: Tensor) -> Tensor:
    """(queries, outputs): sum_j l_j^2 sigma_j^2, a row of weight w counted as w observations; sigma2 (keys, outputs).

    log_mass: (queries,), that of the estimate. Where sums of the squared kernel are as cheap as those of the kernel,
    it is a pooling of sigma2 with that; otherwise, and far away, from rows of the hat matrix, by blocks.
    """
    data = smoother.data
    if smoother.degree == 1 and KERNELS[smoother.kernel].square is not None:
        return _of_lines(smoother, query, sigma2)
    if smoother.degree == 0:
        of_sigma2, kernel = replace(smoother, data=data._replace(value=sigma2)).ready, smoother.kernel_at(query)
        if can_square(query, of_sigma2, kernel):
            pooled = pool_squared(query, of_sigma2, kernel, smoother.tolerance)
            inside = log_mass.isfinite()
            share = torch.where(inside, (pooled.log_mass - 2 * torch.where(inside, log_mass, 0.0)).exp(), 0.0)
            factor = pooled.mean.clamp(min=0) * share.to(sigma2.dtype).unsqueeze(-1)
            far = (inside & _is_far(log_mass)).nonzero().flatten()
            factor[far] = _by_rows(smoother, query[far], sigma2)
            return factor
    return _by_rows(smoother, query, sigma2)


def _of_lines(smoother: Smoother, query: Tensor, sigma2: Tensor) -> Tensor:
    """(queries, outputs): the same for local lines, from moments of the squared kernel.

    With u = k - q, its mean s and covariance C under the weights p of eq. 4, a line has the weights
    l_j = p_j (1 - s'C^-1 (u_j - s)) = p_j (a + b'u_j): of f^2 sigma^2 the sum, the shift and the spread are enough.
    """
    data, kernel = smoother.data, smoother.kernel_at(query)
    pooled = smoother.pool(query, moments=True)
    assert pooled.moments is not None
    inverse, trusted = hat_matrix.covariance_inverse(pooled.moments)
    slope = -(inverse @ pooled.moments.shift.unsqueeze(-1)).squeeze(-1)
    constant = 1 - (slope * pooled.moments.shift).sum(-1)
    inside = pooled.log_mass.isfinite()
    factor = torch.zeros(len(query), sigma2.shape[-1], dtype=sigma2.dtype, device=sigma2.device)
    for output, variance in enumerate(sigma2.T):
        weight = variance if data.weight is None else variance * data.weight
        there = weight > 0
        if not bool(there.any()):
            continue
        squares = pool_squared(
            query,
            prepare(Observations(data.key[there], data.value[there], weight[there])),
            kernel,
            smoother.tolerance,
            moments=True,
        )
        assert squares.moments is not None
        shift, spread, _ = squares.moments
        square = constant.square() + 2 * constant * (slope * shift).sum(-1)
        square += torch.einsum("qd,qde,qe->q", slope, spread, slope)
        share = torch.where(inside, (squares.log_mass - 2 * torch.where(inside, pooled.log_mass, 0.0)).exp(), 0.0)
        factor[:, output] = (square.clamp(min=0) * share).to(sigma2.dtype)
    lost = (inside & (~trusted | _is_far(pooled.log_mass))).nonzero().flatten()
    factor[lost] = _by_rows(smoother, query[lost], sigma2)
    return factor


def _is_far(log_mass: Tensor) -> Tensor:
    """(queries,): whether a mass is so small that its logarithm has lost the digits that tell masses apart."""
    return log_mass.abs() * torch.finfo(log_mass.dtype).eps > LOST


def _by_rows(smoother: Smoother, query: Tensor, sigma2: Tensor) -> Tensor:
    """(queries, outputs): sum_j l_j^2 sigma_j^2 from rows of the hat matrix."""
    data = smoother.data
    per_observation = sigma2 if data.weight is None else sigma2 / data.weight.unsqueeze(-1)
    factor = sigma2.new_zeros(len(query), sigma2.shape[-1])
    for block, seen in nearby_keys(smoother, query, pairs=hat_matrix.WEIGHTS_AT_ONCE):
        factor[block] = (
            hat_matrix.hat_rows(smoother, query[block], seen=seen).weight.square() @ per_observation[seen.row]
        )
    return factor


def derivative(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of the estimate at degree 0, (queries, dim, outputs), and the log mass, (queries,).

    The derivative is 0 in an empty window, where the log mass is minus infinity.

    A kernel with a kink (Laplacian, triangular) counts the key it has its kink at as flat: the middle of the two
    one-sided derivatives.
    """
    _check(smoother)
    if smoother.kernel == "gaussian":
        return _derivative_of_gaussian(smoother, query)
    return _derivative_by_pairs(smoother, query), smoother.pool(query).log_mass


def _derivative_of_gaussian(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """log f has the derivative (k - q) / width^2: what is left is the covariance of keys and values."""
    data = smoother.data
    pooled = replace(smoother, tolerance=None).pool(query, moments=True)
    assert pooled.moments is not None
    shift, _, cross = pooled.moments
    width = torch.as_tensor(smoother.width, dtype=shift.dtype, device=shift.device)
    slope = (cross - shift.unsqueeze(-1) * pooled.mean.unsqueeze(-2)) / width.square().reshape(-1, 1)
    slope = slope.to(data.value.dtype)
    _, trusted = hat_matrix.covariance_inverse(pooled.moments)
    lost = (~trusted & pooled.log_mass.isfinite()).nonzero().flatten()
    if len(lost):
        slope = slope.index_copy(0, lost, _derivative_by_pairs(smoother, query[lost]))
    return slope, pooled.log_mass


def _derivative_by_pairs(smoother: Smoother, query: Tensor) -> Tensor:
    assert isinstance(smoother.width, float | Tensor)
    score = as_score(Kernel(smoother.kernel, smoother.width))
    slope = smoother.data.value.new_zeros(*query.shape, smoother.outputs)
    for block, seen in nearby_keys(smoother, query.detach()):
        data = seen.data
        with torch.enable_grad():
            point = query[block].detach().requires_grad_()
            # Each query's estimate depends on its own place only: the gradient of the sum holds every derivative.
            mean = attend(point, data.key, data.value, score=score, bias=data.bias)
            for output in range(mean.shape[1]):
                slope[block, :, output] = torch.autograd.grad(mean[:, output].sum(), point, retain_graph=True)[0]
    return slope


def _check(smoother: Smoother) -> None:
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
