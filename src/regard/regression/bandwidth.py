"""What `bandwidth` may be: a number, one per dimension, a rule, `Nearest`, or a criterion to minimise.

The rules are normal reference rules: Scott's is the standard deviation times n^(-1/(d + 4)), Silverman's is Scott's
times (4 / (d + 2))^(1/(d + 4)). For another kernel than the Gaussian the bandwidth is multiplied by its canonical
ratio, so that it smooths as much.
"""

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
    CriterionEvaluator,
    SelectedBandwidth,
    Trials,
    canonical_ratio,
    check_counts,
    check_found,
    check_rows,
    minimize,
    standard_deviation,
)
from regard.regression.criteria import CRITERIA
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS

RULES = ("scott", "silverman")


class BandwidthOptions(NamedTuple):
    """The arguments of an estimator that concern the bandwidth."""

    bandwidth: Any
    exclude: int
    per_dimension: bool
    verbose: int


def select(smoother: Smoother, options: BandwidthOptions) -> SelectedBandwidth:
    """Return the curve with the bandwidth that the options ask for; its own bandwidth does not matter.

    Raises:
        RegardError: if `bandwidth` is none of the above, or does not fit the data.
    """
    bandwidth, data = options.bandwidth, smoother.data
    _check(options, smoother)
    if isinstance(bandwidth, Nearest):
        return _select_nearest(smoother, options)
    if isinstance(bandwidth, str) and bandwidth in RULES:
        width = reference_bandwidth(bandwidth, data, smoother.kernel)
        return SelectedBandwidth(replace(smoother, width=_as_width(width, data)))
    if isinstance(bandwidth, str):
        selected = minimize(CriterionEvaluator(smoother, bandwidth, options.exclude, options.verbose))
        if options.per_dimension and data.key.shape[-1] > 1:
            selected = refine_per_dimension(selected, bandwidth, options.exclude, options.verbose)
        return selected
    numbers = torch.tensor(np.asarray(bandwidth, dtype=np.float64), device="cpu")
    return SelectedBandwidth(replace(smoother, width=_as_width(numbers, data)))


def as_public(smoother: Smoother) -> float | np.ndarray | Nearest:
    """Return the bandwidth as users read it: a number, an array with one per dimension, or `Nearest(k)`."""
    return smoother.width.cpu().numpy().copy() if isinstance(smoother.width, Tensor) else smoother.width


def reference_bandwidth(rule: str, data: Observations, kernel: str) -> Tensor:
    """Return the bandwidth of each dimension by a normal reference rule, (dim,)."""
    dim = data.key.shape[-1]
    n = len(data.key) if data.weight is None else float(data.weight.double().sum())
    constant = 1.0 if rule == "scott" else (4 / (dim + 2)) ** (1 / (dim + 4))
    return standard_deviation(data) * constant * n ** (-1 / (dim + 4)) * canonical_ratio(kernel)


def _as_width(width: Tensor, data: Observations) -> float | Tensor:
    """Return one number, or one per dimension in the dtype and on the device of the data."""
    if width.numel() == 1:
        return float(width)
    return width.to(data.key)


def _check(options: BandwidthOptions, smoother: Smoother) -> None:
    bandwidth, dim = options.bandwidth, smoother.data.key.shape[-1]
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
    if options.per_dimension and not by_criterion:
        raise RegardError(
            "per_dimension",
            got=f"True with bandwidth={bandwidth!r:.60}",
            needed=f"a criterion whose gradient can be followed: one of {', '.join(CRITERIA)}",
            repair="Pass per_dimension=False; an array given as bandwidth is per dimension already.",
        )


def _is_positive(bandwidth: object, dim: int, dtype: torch.dtype) -> bool:
    """Whether these are bandwidths for keys of that dtype, in which they must neither vanish nor overflow."""
    try:
        numbers = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    if np.asarray(bandwidth).dtype == bool or numbers.shape not in ((), (1,), (dim,)):
        return False
    limits = torch.finfo(dtype)
    return all(limits.tiny <= number <= limits.max for number in numbers.reshape(-1))


# --- Adaptive bandwidths -----------------------------------------------------------------------------------------

# The numbers of neighbours that are tried: a geometric grid, then this many around the best.
GRID_RATIO = 1.25
AROUND_BEST = 12


def _select_nearest(smoother: Smoother, options: BandwidthOptions) -> SelectedBandwidth:
    """Return the curve with adaptive bandwidths, measured in standard deviations if X has several columns."""
    data, k = smoother.data, options.bandwidth.k
    if data.key.shape[-1] > 1:
        unit = standard_deviation(data).to(data.key.dtype)
        smoother = replace(smoother, data=replace(data, key=data.key / unit), unit=unit)
    if isinstance(k, str):
        return select_k(smoother, k, options.exclude, options.verbose)
    return SelectedBandwidth(replace(smoother, width=options.bandwidth))


def select_k(smoother: Smoother, criterion: str, exclude: int, verbose: int = 0) -> SelectedBandwidth:
    """Return the number of neighbours with the smallest criterion; of equal values the largest number.

    It is searched for from 2 to the number of observations that remain when one is left out.
    """
    check_rows(smoother.data, criterion)
    check_counts(smoother)
    largest = max(int(smoother.total_weight()) - 1, 2)
    values: dict[int, float] = {}
    isolated: dict[int, int] = {}

    def best_of(candidates: np.ndarray) -> int:
        for k in candidates.tolist():
            if k not in values:
                found = CRITERIA[criterion](replace(smoother, width=Nearest(k)), exclude)
                values[k], isolated[k] = float(found.value), found.isolated
                if verbose > 1:
                    print(f"[regard] {criterion} of {k} neighbours: {values[k]:.8g}")
        lowest = min(values.values())
        return max(k for k, value in values.items() if value <= lowest + 1e-12 * abs(lowest))

    steps = int(np.log(largest / 2) / np.log(GRID_RATIO)) + 1
    best = best_of(np.unique(np.geomspace(2, largest, steps + 1).round().astype(int)))
    tried = sorted(values)
    index = tried.index(best)
    below, above = tried[max(index - 1, 0)], tried[min(index + 1, len(tried) - 1)]
    best = best_of(np.unique(np.linspace(below, above, AROUND_BEST).round().astype(int)))
    check_found(criterion, values[best], len(smoother.data.key))
    if largest > 2 and best in (2, largest):
        warnings.warn(
            f"the criterion is smallest at the edge of what was tried, {best} neighbours",
            BandwidthWarning,
            stacklevel=2,
        )
    tried = sorted(values)
    trials = Trials(np.array(tried), np.array([values[k] for k in tried]))
    return SelectedBandwidth(replace(smoother, width=Nearest(best)), values[best], isolated[best], trials)


# --- One bandwidth per dimension ---------------------------------------------------------------------------------

# The kernel does not see a dimension any more if its bandwidth is this many times its range.
WIDEST = 100.0
MAX_STEPS = 60


def refine_per_dimension(
    selected: SelectedBandwidth, criterion: str, exclude: int, verbose: int = 0
) -> SelectedBandwidth:
    """Refine the bandwidths by the gradient of the criterion in their logarithms; the result is never worse.

    A bandwidth is the unit in which its column is measured, so the gradient flows through the keys. Each step pools all
    pairs of rows by `attend`.
    """
    smoother = selected.smoother
    if not KERNELS[smoother.kernel].is_differentiable:
        raise RegardError(
            "per_dimension",
            got=f"True with kernel={smoother.kernel!r}",
            needed="a kernel whose value changes with the distance",
            repair="A boxcar is flat, so the criterion has no gradient in its bandwidths: pass per_dimension=False.",
        )
    assert isinstance(smoother.width, Tensor)
    key = smoother.data.key.double()
    start = smoother.width.double().log().cpu().numpy()
    extent = (key.amax(0) - key.amin(0)).cpu().numpy()
    highest = np.maximum(np.log(WIDEST * np.where(extent > 0, extent, 1.0)), start)

    def value_and_gradient(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(logarithms, device=key.device, requires_grad=True)
        value = CRITERIA[criterion](_in_units_of(smoother, point.exp()), exclude).value
        if not bool(value.isfinite()):
            return math.inf, np.zeros_like(logarithms)
        (slope,) = torch.autograd.grad(value, point)
        if verbose > 1:
            print(f"[regard] {criterion} of {np.exp(logarithms)}: {float(value.detach()):.8g}")
        return float(value.detach()), slope.cpu().numpy()

    bounds, options = list(zip(start - math.log(1e3), highest, strict=True)), {"maxiter": MAX_STEPS}
    result = optimize.minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if not result.fun < selected.value:
        return selected
    _warn_if_unused(result.x >= highest)
    refined = replace(smoother, width=torch.tensor(np.exp(result.x), device="cpu").to(smoother.width))
    found = CRITERIA[criterion](refined, exclude)
    return SelectedBandwidth(refined, float(found.value), found.isolated, selected.trials)


def _in_units_of(smoother: Smoother, width: Tensor) -> Smoother:
    """Return the same curve on keys divided by the bandwidths, with bandwidth 1."""
    key = (smoother.data.key.double() / width).to(smoother.data.key.dtype)
    return replace(smoother, data=replace(smoother.data, key=key), width=1.0)


def _warn_if_unused(unused: np.ndarray) -> None:
    if unused.any():
        columns = ", ".join(map(str, np.flatnonzero(unused)))
        warnings.warn(
            f"the bandwidth of column {columns} grew to {WIDEST:g} times its range: it tells nothing about y",
            BandwidthWarning,
            stacklevel=2,
        )
