"""One width per dimension, by the gradient of the criterion in their logarithms.

A width enters as the unit in which its column is measured, so the gradient flows through the keys, and every
criterion and degree that is written in torch can be followed. Each step pools all pairs of rows by `attend`.
"""

import math
import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize

from regard.errors import RegardError
from regard.regression.criteria import CRITERIA
from regard.regression.search import Found
from regard.regression.smoother import Smoother
from regard.regression.warning_kinds import BandwidthWarning
from regard.scores.kernels import KERNELS

# A dimension this many times its own extent wide is not seen by the kernel any more.
WIDEST = 100.0
MOST_STEPS = 60


def refine(found: Found, criterion: str, exclude: int, verbose: int = 0) -> Found:
    """Start from the widths that were found and go down; the result is never worse than the start."""
    smoother = found.smoother
    if not KERNELS[smoother.kernel].is_differentiable:
        raise RegardError(
            "per_dimension",
            got=f"True with kernel={smoother.kernel!r}",
            needed="a kernel whose value changes with the distance",
            repair="A boxcar is flat, so the criterion has no gradient in its widths: pass per_dimension=False.",
        )
    assert isinstance(smoother.width, torch.Tensor)
    key = smoother.data.key.double()
    start = smoother.width.double().log().cpu().numpy()
    extent = (key.amax(0) - key.amin(0)).cpu().numpy()
    highest = np.maximum(np.log(WIDEST * np.where(extent > 0, extent, 1.0)), start)

    def judged(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(logarithms, device=key.device, requires_grad=True)
        value = CRITERIA[criterion](_measured_in(smoother, point.exp()), exclude).value
        if not bool(value.isfinite()):
            return math.inf, np.zeros_like(logarithms)
        (slope,) = torch.autograd.grad(value, point)
        if verbose > 1:
            print(f"[regard] {criterion} of {np.exp(logarithms)}: {float(value.detach()):.8g}")
        return float(value.detach()), slope.cpu().numpy()

    bounds = list(zip(start - math.log(1e3), highest, strict=True))
    result = minimize(judged, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS})
    if not result.fun < found.value:
        return found
    _say_if_unseen(result.x >= highest)
    refined = replace(smoother, width=torch.as_tensor(np.exp(result.x), device="cpu").to(smoother.width))
    judgement = CRITERIA[criterion](refined, exclude)
    return Found(refined, float(judgement.value), judgement.alone, found.trials)


def _measured_in(smoother: Smoother, width: torch.Tensor) -> Smoother:
    """The same smoother on keys divided by the widths, with width 1; `attend` pools it, which has a gradient."""
    data = smoother.data
    return replace(smoother, data=data._replace(key=(data.key.double() / width).to(data.key.dtype)), width=1.0)


def _say_if_unseen(unseen: np.ndarray) -> None:
    if unseen.any():
        columns = ", ".join(map(str, np.flatnonzero(unseen)))
        warnings.warn(
            f"the bandwidth of column {columns} grew to {WIDEST:g} times its range: it tells nothing about y",
            BandwidthWarning,
            stacklevel=2,
        )
