"""What `bandwidth` may be, and the smoother that follows from it and the data."""

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from regard.errors import RegardError
from regard.regression import BandwidthWarning
from regard.regression.bandwidth_search import (
    RULES,
    CriterionEvaluator,
    SelectedBandwidth,
    Trials,
    check_counts,
    check_found,
    check_rows,
    minimize,
    reference_bandwidth,
    standard_deviation,
)
from regard.regression.criteria import CRITERIA
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS

GRID_RATIO = 1.25
AROUND = 12


def select_k(smoother: Smoother, criterion: str, exclude: int, verbose: int = 0) -> SelectedBandwidth:
    """The k with the smallest criterion, from 2 to the number of observations left when one is out.

    Every k costs all pairs of rows. Of equal values the largest k is taken.
    """
    check_rows(smoother.data, criterion)
    check_counts(smoother)
    most = max(int(smoother.total()) - 1, 2)
    values: dict[int, float] = {}
    alone: dict[int, int] = {}

    def judge(candidates: np.ndarray) -> int:
        for k in candidates.tolist():
            if k not in values:
                judgement = CRITERIA[criterion](replace(smoother, width=Nearest(k)), exclude)
                values[k], alone[k] = float(judgement.value), judgement.alone
                if verbose > 1:
                    print(f"[regard] {criterion} of {k} neighbours: {values[k]:.8g}")
        lowest = min(values.values())
        return max(k for k, value in values.items() if value <= lowest + 1e-12 * abs(lowest))

    steps = int(np.log(most / 2) / np.log(GRID_RATIO)) + 1
    best = judge(np.unique(np.geomspace(2, most, steps + 1).round().astype(int)))
    tried = sorted(values)
    place = tried.index(best)
    below, above = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
    best = judge(np.unique(np.linspace(below, above, AROUND).round().astype(int)))
    check_found(criterion, values[best], len(smoother.data.key))
    if most > 2 and best in (2, most):
        warnings.warn(
            f"the criterion is smallest at the edge of what was tried, {best} neighbours",
            BandwidthWarning,
            stacklevel=2,
        )
    tried = sorted(values)
    trials = Trials(np.array(tried), np.array([values[k] for k in tried]))
    return SelectedBandwidth(replace(smoother, width=Nearest(best)), values[best], alone[best], trials)


# A dimension this many times its own extent wide is not seen by the kernel any more.
WIDEST = 100.0
MOST_STEPS = 60


def refine_per_dimension(found: SelectedBandwidth, criterion: str, exclude: int, verbose: int = 0) -> SelectedBandwidth:
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
    result = optimize.minimize(
        judged, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS}
    )
    if not result.fun < found.value:
        return found
    _say_if_unseen(result.x >= highest)
    refined = replace(smoother, width=torch.as_tensor(np.exp(result.x)).to(smoother.width))
    judgement = CRITERIA[criterion](refined, exclude)
    return SelectedBandwidth(refined, float(judgement.value), judgement.alone, found.trials)


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


class Chosen(NamedTuple):
    """The smoother with its width; where a criterion chose it, its value there, rows alone, and what was tried."""

    smoother: Smoother
    value: float | None = None
    alone: int | None = None
    trials: Trials | None = None


class BandwidthOptions(NamedTuple):
    """The arguments of an estimator that concern the width."""

    bandwidth: Any
    exclude: int
    per_dimension: bool
    verbose: int


def select(smoother: Smoother, wish: BandwidthOptions) -> Chosen:
    """The smoother with the width that was wished for; its own width does not matter."""
    bandwidth, data = wish.bandwidth, smoother.data
    _check(wish, smoother)
    if isinstance(bandwidth, Nearest):
        return _nearest(smoother, wish)
    if isinstance(bandwidth, str) and bandwidth in RULES:
        return Chosen(replace(smoother, width=_plain(reference_bandwidth(bandwidth, data, smoother.kernel), data)))
    if isinstance(bandwidth, str):
        found = minimize(CriterionEvaluator(smoother, bandwidth, wish.exclude, wish.verbose))
        if wish.per_dimension and data.key.shape[-1] > 1:
            found = refine_per_dimension(found, bandwidth, wish.exclude, wish.verbose)
        return Chosen(*found)
    return Chosen(replace(smoother, width=_plain(torch.as_tensor(np.asarray(bandwidth, dtype=np.float64)), data)))


def as_public(smoother: Smoother) -> float | np.ndarray | Nearest:
    """The width as a user reads it: a number, an array with one per dimension, or `Nearest(k)`."""
    return smoother.width.cpu().numpy().copy() if isinstance(smoother.width, Tensor) else smoother.width


def _nearest(smoother: Smoother, wish: BandwidthOptions) -> Chosen:
    """Adaptive widths, measured in standard deviations where there are several dimensions."""
    data: Observations = smoother.data
    if data.key.shape[-1] > 1:
        scale = standard_deviation(data).to(data.key.dtype)
        smoother = replace(smoother, data=data._replace(key=data.key / scale), scale=scale)
    if isinstance(wish.bandwidth.k, str):
        return Chosen(*select_k(smoother, wish.bandwidth.k, wish.exclude, wish.verbose))
    return Chosen(replace(smoother, width=wish.bandwidth))


def _plain(width: Tensor, data: Observations) -> float | Tensor:
    """A number where there is one for all dimensions, else (dim,) beside the data."""
    return float(width) if width.numel() == 1 else width.to(data.key)


def _check(wish: BandwidthOptions, smoother: Smoother) -> None:
    bandwidth, dim = wish.bandwidth, smoother.data.key.shape[-1]
    if isinstance(bandwidth, Nearest):
        known = True
    elif isinstance(bandwidth, str):
        known = bandwidth in RULES or bandwidth in CRITERIA
    else:
        known = _is_positive(bandwidth, dim, smoother.data.key.dtype)
    if not known:
        raise RegardError(
            "bandwidth",
            got=f"{bandwidth!r:.80}",
            needed=f"a positive number of {str(smoother.data.key.dtype).removeprefix('torch.')}, {dim} of them, "
            f"Nearest(k), or one of {', '.join([*CRITERIA, *RULES])}",
            repair='Pass bandwidth="loo" to have it chosen from the data.',
        )
    by_criterion = isinstance(bandwidth, str) and bandwidth in CRITERIA
    if wish.per_dimension and not by_criterion:
        raise RegardError(
            "per_dimension",
            got=f"True with bandwidth={bandwidth!r:.60}",
            needed=f"a criterion whose gradient can be followed: one of {', '.join(CRITERIA)}",
            repair="Pass per_dimension=False; an array given as bandwidth is per dimension already.",
        )


def _is_positive(bandwidth: object, dim: int, dtype: torch.dtype) -> bool:
    """Whether these are widths for keys of that dtype, in which they must neither vanish nor overflow."""
    try:
        numbers = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    if np.asarray(bandwidth).dtype == bool or numbers.shape not in ((), (1,), (dim,)):
        return False
    limits = torch.finfo(dtype)
    return all(limits.tiny <= number <= limits.max for number in numbers.reshape(-1))
