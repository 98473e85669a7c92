"""The derivative of the Nadaraya-Watson curve, exactly: of a Gaussian from its moments, else by differentiating."""

from dataclasses import replace

import torch
from torch import Tensor

from regard import attend
from regard.errors import RegardError
from regard.regression import hat_matrix
from regard.regression.hat_matrix import nearby_keys
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Kernel
from regard.regression.sums.all_pairs import as_score
from regard.scores.kernels import KERNELS


def of_pooling(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of the estimate at degree 0, (queries, dim, outputs), and the log mass, (queries,).

    The derivative is 0 in an empty window, where the log mass is minus infinity.

    A kernel with a kink (Laplacian, triangular) counts the key it has its kink at as flat: the middle of the two
    one-sided derivatives.
    """
    _check(smoother)
    if smoother.kernel == "gaussian":
        return _of_gaussian(smoother, query)
    return _by_pairs(smoother, query), smoother.pool(query).log_mass


def _of_gaussian(smoother: Smoother, query: Tensor) -> tuple[Tensor, Tensor]:
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
        slope = slope.index_copy(0, lost, _by_pairs(smoother, query[lost]))
    return slope, pooled.log_mass


def _by_pairs(smoother: Smoother, query: Tensor) -> Tensor:
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
