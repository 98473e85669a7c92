"""The derivative of the Nadaraya-Watson curve, exactly, by differentiating the pooling itself."""

import torch
from torch import Tensor

from regard import attend
from regard.errors import RegardError
from regard.regression.nearest import Nearest
from regard.regression.smoother import Smoother
from regard.regression.sums import Kernel
from regard.regression.sums.through_attend import score_of
from regard.scores.links import LINKS


def of_pooling(smoother: Smoother, query: Tensor) -> Tensor:
    """(queries, dim, outputs): d estimate / d query at degree 0; 0 in an empty window.

    A kernel with a kink (Laplacian, triangular) counts the key it has its kink at as flat: the middle of the two
    one-sided derivatives.
    """
    _check(smoother)
    data = smoother.data
    assert isinstance(smoother.width, float | Tensor)
    score = score_of(Kernel(smoother.kernel, smoother.width))
    with torch.enable_grad():
        point = query.detach().requires_grad_()
        # Each query's estimate depends on its own place only: the gradient of the sum holds every derivative.
        mean = attend(point, data.key, data.value, score=score, bias=data.bias)
        slopes = [torch.autograd.grad(mean[:, o].sum(), point, retain_graph=True)[0] for o in range(mean.shape[1])]
    return torch.stack(slopes, -1)


def _check(smoother: Smoother) -> None:
    if not LINKS[smoother.kernel].differentiable:
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
