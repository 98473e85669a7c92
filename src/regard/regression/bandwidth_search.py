"""Minimise a criterion over the bandwidth: a grid, its low ground again, then Brent's method in each valley.

One factor is searched for, in its logarithm (its *position*): in one dimension the factor is the bandwidth itself, in
several it multiplies the standard deviation of each column. The grid reaches from well below the usual distance between
neighbours to beyond the range of the data. Compact kernels make the criterion rough, so their grid is finer, most of
all where the criterion is low; a dip narrower than that may be missed. The lowest value found is taken, and of equal
values the widest bandwidth.

With more than SCAN_ROWS rows the grid is evaluated on that many rows, drawn with a fixed seed. The result is scaled by
the rate n^(-1/(d + 4)), and the valley around it is searched on all rows. Structure that is finer than the sample (a
daily cycle in years of hours) shows on all rows only, so bandwidths too narrow for the sample are tried there too, and
where one is better its valley is searched as well.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from regard.errors import RegardError
from regard.regression import BandwidthWarning
from regard.regression.criteria import CRITERIA, can_evaluate_many, evaluate_many
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS

SCAN_ROWS = 8192
GRID_STEP, GRID_STEP_OF_COMPACT = 0.7, 0.15
# A gap lies between two neighbouring grid positions. The lowest gaps are scanned again: at most this many, with this
# many new positions in each. A gap is low if the criterion at one of its ends is at most its lowest value plus, for a
# smooth criterion, LOW_PART of its range; for a rough one, NEAR_LOWEST times its lowest value.
GAPS, POSITIONS_PER_GAP, LOW_PART = 6, 1, 0.25
GAPS_OF_ROUGH, POSITIONS_PER_GAP_OF_ROUGH, NEAR_LOWEST = 12, 4, 0.02
# Accuracy of a position by Brent's method: a rough criterion does not deserve more.
ACCURACY, ACCURACY_OF_ROUGH = 1e-5, 1e-3


class Trials(NamedTuple):
    """What was tried on all rows.

    Attributes:
        tried: factors of the standard deviations, in one dimension the bandwidths themselves; or numbers of neighbours;
            in increasing order.
        values: the criterion at each.
    """

    tried: np.ndarray
    values: np.ndarray


class SelectedBandwidth(NamedTuple):
    """A curve with its bandwidth; all else is None unless a criterion selected it.

    Attributes:
        smoother: the curve.
        value: the criterion.
        isolated: the number of rows without any other in their window.
        trials: what was tried.
    """

    smoother: Any
    value: float | None = None
    isolated: int | None = None
    trials: Trials | None = None


class CriterionEvaluator:
    """A criterion on the data of a smoother, by position; no value is computed twice.

    Attributes:
        values: the criterion at each position tried; NaN counts as infinite.
        isolated: the number of isolated rows at each position.
    """

    def __init__(self, smoother: Smoother, criterion: str, exclude: int, verbose: int) -> None:
        """Keep what is to be evaluated; the bandwidth of the smoother does not matter."""
        self.smoother = smoother
        self.criterion = criterion
        self.exclude = exclude
        self.verbose = verbose
        self.values: dict[float, float] = {}
        self.isolated: dict[float, int] = {}
        self.unit = None if smoother.data.key.shape[-1] == 1 else standard_deviation(smoother.data)
        self._scanned: set[float] = set()

    def at(self, position: float) -> float:
        """Return the criterion at a position."""
        if position not in self.values or position in self._scanned:
            self._scanned.discard(position)
            self._keep(position, *self._evaluate(position))
        return self.values[position]

    def scan(self, positions: Sequence[float]) -> None:
        """Evaluate the criterion at many positions, in one call where that is possible, and then less accurately."""
        if not self.can_scan:
            for position in positions:
                self.at(position)
            return
        new = [position for position in positions if position not in self.values]
        found = evaluate_many(self.smoother, self.criterion, [math.exp(position) for position in new])
        for position, criterion in zip(new, found, strict=True):
            if criterion is None:
                self.at(position)
            else:
                self._keep(position, float(criterion.value), criterion.isolated)
                self._scanned.add(position)

    def lowest(self) -> float:
        """Return the position of the lowest value, evaluated accurately; the last one of those that tie."""
        while (position := self._lowest()) in self._scanned:
            self.at(position)
        return position

    def positions(self) -> list[float]:
        """Return all positions tried, in increasing order."""
        return sorted(self.values)

    def smoother_at(self, position: float) -> Any:
        """Return the curve with the bandwidth of a position."""
        factor = math.exp(position)
        width = factor if self.unit is None else (self.unit * factor).to(self.smoother.data.key.dtype)
        return replace(self.smoother, width=width)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.smoother.data.key)

    def range(self) -> tuple[float, float]:
        """Return the positions of the narrowest and the widest bandwidth to try; equal if all rows are equal."""
        return _search_range(self.smoother, self.unit)

    def sample(self) -> tuple["CriterionEvaluator", float]:
        """Return the same criterion on SCAN_ROWS rows, and their share of all rows."""
        data = self.smoother.data
        order = torch.randperm(len(data.key), generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        rows = order[:SCAN_ROWS].sort().values.to(data.key.device)
        share = SCAN_ROWS / len(data.key)
        # Rows that are neighbours in time are closer to each other in the sample.
        exclude = math.ceil(self.exclude * share)
        sampled = CriterionEvaluator(replace(self.smoother, data=data.take(rows)), self.criterion, exclude, 0)
        sampled.unit = self.unit
        return sampled, share

    @property
    def can_scan(self) -> bool:
        """Whether many positions can be evaluated in one call."""
        return can_evaluate_many(self.smoother, self.exclude)

    def _evaluate(self, position: float) -> tuple[float, int]:
        found = CRITERIA[self.criterion](self.smoother_at(position), self.exclude)
        return float(found.value), found.isolated

    def _keep(self, position: float, value: float, isolated: int) -> None:
        self.values[position] = math.inf if math.isnan(value) else value
        self.isolated[position] = isolated
        if self.verbose > 1:
            print(f"[regard] {self.criterion} at factor {math.exp(position):.6g}: {value:.8g}")

    def _lowest(self) -> float:
        least = min(self.values.values())
        # Two evaluations of one criterion may differ by this: sums in another order.
        rounding = 4 * torch.finfo(self.smoother.data.key.dtype).eps * abs(least)
        return max(position for position, value in self.values.items() if value <= least + rounding)


def minimize(evaluator: CriterionEvaluator) -> SelectedBandwidth:
    """Return the bandwidth with the smallest criterion.

    Raises:
        RegardError: if the criterion is not finite at any bandwidth, or observations cannot be counted.
    """
    smoother, criterion = evaluator.smoother, evaluator.criterion
    check_rows(smoother.data, criterion)
    if criterion != "loo":
        check_counts(smoother)
    low, high = evaluator.range()
    if low == high:
        _warn("all rows of X are equal, so that every bandwidth gives the same curve: 1 was taken")
        evaluator.at(0.0)
        return _selected(evaluator)
    rough = KERNELS[smoother.kernel].is_compact
    step = GRID_STEP_OF_COMPACT if rough else GRID_STEP
    grid = np.linspace(low, high, max(math.ceil((high - low) / step), 2) + 1).tolist()
    if evaluator.rows > SCAN_ROWS:
        sample, share = evaluator.sample()
        search_grid(sample, grid, rough)
        dim = smoother.data.key.shape[-1]
        _search_valley(evaluator, sample.lowest() + math.log(share) / (dim + 4), (low, high), rough)
        _search_finer_valley(evaluator, sample, (low, high), rough)
    else:
        search_grid(evaluator, grid, rough)
    selected = _selected(evaluator)
    assert selected.value is not None
    check_found(criterion, selected.value, evaluator.rows)
    _warn_at_edge(evaluator, low, high, smoother.degree)
    if evaluator.verbose:
        print(f"[regard] {criterion} {selected.value:.8g} after {len(evaluator.values)} evaluations on all rows")
    return selected


def _selected(evaluator: CriterionEvaluator) -> SelectedBandwidth:
    best, positions = evaluator.lowest(), evaluator.positions()
    trials = Trials(np.exp(positions), np.array([evaluator.values[position] for position in positions]))
    return SelectedBandwidth(evaluator.smoother_at(best), evaluator.values[best], evaluator.isolated[best], trials)


def search_grid(evaluator: CriterionEvaluator, grid: list[float], rough: bool) -> None:
    """Evaluate the grid, its low ground again, and search every valley that may hold the minimum."""
    evaluator.scan(grid)
    values = np.array([evaluator.values[position] for position in grid])
    if not np.isfinite(values).any():
        return
    lowest, highest = values.min(), values[np.isfinite(values)].max()
    if rough:
        _scan_gaps(evaluator, grid, lowest + NEAR_LOWEST * abs(lowest), GAPS_OF_ROUGH, POSITIONS_PER_GAP_OF_ROUGH)
    else:
        _scan_gaps(evaluator, grid, lowest + LOW_PART * (highest - lowest), GAPS, POSITIONS_PER_GAP)
    positions = evaluator.positions()
    brackets = [positions[i - 1 : i + 2] for i in range(1, len(positions) - 1)]
    valleys = [bracket for bracket in brackets if _is_valley(evaluator, bracket)]
    depths = sorted((_least_possible(evaluator, bracket), bracket) for bracket in valleys)
    for depth, bracket in depths:
        if depth <= min(evaluator.values.values()):
            _search_bracket(evaluator, bracket, rough)


def _scan_gaps(evaluator: CriterionEvaluator, grid: list[float], below: float, gaps: int, inside: int) -> None:
    """Evaluate more positions in the gaps of the grid that have an end at or below a value, the lowest gaps first."""
    values = np.array([evaluator.values[position] for position in grid])
    lower_end = np.minimum(values[:-1], values[1:])
    low = np.flatnonzero(lower_end <= below)
    chosen = low[np.argsort(lower_end[low], kind="stable")[:gaps]]
    evaluator.scan([x for i in chosen for x in np.linspace(grid[i], grid[i + 1], inside + 2)[1:-1].tolist()])


def _is_valley(evaluator: CriterionEvaluator, bracket: Sequence[float]) -> bool:
    left, middle, right = (evaluator.values[position] for position in bracket)
    return middle <= left and middle <= right and math.isfinite(middle)


def _least_possible(evaluator: CriterionEvaluator, bracket: Sequence[float]) -> float:
    """Return an estimate of how low a valley may reach.

    A parabola through three evenly spaced points drops at most 1/8 of the height of the valley below its middle point;
    four times that is allowed for.
    """
    left, middle, right = (evaluator.values[position] for position in bracket)
    higher = max(left, right)
    return middle - (higher - middle) / 2 if math.isfinite(higher) else middle


def _search_bracket(evaluator: CriterionEvaluator, bracket: Sequence[float], rough: bool) -> None:
    """Minimise the criterion between the ends of a bracket by Brent's method, from its middle."""
    accuracy = ACCURACY_OF_ROUGH if rough else ACCURACY
    left, middle, right = bracket
    if evaluator.values[middle] in (evaluator.values[left], evaluator.values[right]):
        bounds, options = (left, right), {"xatol": accuracy}
        optimize.minimize_scalar(evaluator.at, bounds=bounds, method="bounded", options=options)
        return
    # SciPy's xtol is relative to x. Shift positions so that the middle is at 1: xtol is then about absolute.
    known = {1 + position - middle: evaluator.values[position] for position in bracket}

    def value(x: float) -> float:
        return known[x] if x in known else evaluator.at(middle + float(x) - 1)

    optimize.minimize_scalar(value, bracket=tuple(known), method="brent", options={"xtol": accuracy})


def _search_valley(evaluator: CriterionEvaluator, start: float, within: tuple[float, float], rough: bool) -> None:
    """Search the valley around a first guess on all rows: walk down until both neighbours are higher."""
    low, high = within
    start = min(max(start, low), high)
    around = sorted({max(start - GRID_STEP / 2, low), start, min(start + GRID_STEP / 2, high)})
    for position in around:
        evaluator.at(position)
    while True:
        best = min(around, key=lambda position: (evaluator.values[position], -position))
        if best == around[0] and best > low:
            around.insert(0, max(best - GRID_STEP / 2, low))
            evaluator.at(around[0])
        elif best == around[-1] and best < high:
            around.append(min(best + GRID_STEP / 2, high))
            evaluator.at(around[-1])
        else:
            break
    index = around.index(best)
    if 0 < index < len(around) - 1:
        _search_bracket(evaluator, around[index - 1 : index + 2], rough)


def _search_finer_valley(
    evaluator: CriterionEvaluator, sample: CriterionEvaluator, within: tuple[float, float], rough: bool
) -> None:
    """Look for a lower valley at bandwidths at which rows of the sample have too few neighbours to show one."""
    low, high = within
    lowest_of_sample, highest_of_sample = sample.range()
    # A sample of equal rows shows no valley at all.
    shown_from = lowest_of_sample + 2 * GRID_STEP if lowest_of_sample < highest_of_sample else high
    positions = np.arange(low, min(shown_from, high), GRID_STEP).tolist()
    if not positions:
        return
    # Local means show whether there is one in a fraction of the time of lines.
    smoother = replace(evaluator.smoother, degree=0)
    means = CriterionEvaluator(smoother, evaluator.criterion, evaluator.exclude, 0)
    means.unit = evaluator.unit
    for position in positions:
        means.at(position)
    if means.values[means.lowest()] < evaluator.values[evaluator.lowest()]:
        _search_valley(evaluator, means.lowest(), within, rough)


def _search_range(smoother: Smoother, unit: Tensor | None) -> tuple[float, float]:
    key = smoother.data.key.double()
    extent = key.amax(0) - key.amin(0)
    if not bool((extent > 0).any()):
        return 0.0, 0.0
    ratio = canonical_ratio(smoother.kernel)
    if unit is None:
        spacing = _usual_spacing(smoother.data)
        tiny = torch.finfo(key.dtype).tiny  # neighbours may be nearer than a normal number
        return math.log(max(0.35 * spacing * ratio, tiny)), math.log(max(3 * float(extent) * ratio, 8 * tiny))
    count, dim = key.shape
    widest = 3 * float((extent / unit).max()) * math.sqrt(dim)
    # Weights may sum to 1; then count rows instead.
    narrowest = 0.25 * max(smoother.total_weight(), count) ** (-1 / dim)
    return math.log(narrowest * ratio), math.log(widest * ratio)


def _usual_spacing(data: Observations) -> float:
    """Return the usual distance between neighbouring values of the only column, which are not all equal.

    This is the median distance, or, if smaller, the median that counts each distance once for every row at its ends.
    Without repeated values both are the same. A cluster that holds most of the rows, but few of the distinct values,
    decides the second one.
    """
    position, index = data.key[:, 0].double().unique(return_inverse=True)
    rows = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    rows = torch.zeros_like(position).index_add_(0, index, rows.double())
    distance, order = position.diff().sort()
    covered = (rows[:-1] + rows[1:])[order].cumsum(0)
    middle = int(torch.searchsorted(covered, covered[-1] / 2))
    return min(float(distance.median()), float(distance[middle]))


# --- Units of a bandwidth ----------------------------------------------------------------------------------------


def standard_deviation(data: Observations) -> Tensor:
    """Return the standard deviation of each column, repetitions counted; 1 where a column is constant; (dim,)."""
    key = data.key.double()
    weight = torch.ones_like(key[:, 0]) if data.weight is None else data.weight.double()
    share = (weight / weight.sum()).unsqueeze(-1)
    # Relative to the first row, so that an offset of a constant column does not look like variation.
    away = key - key[0]
    deviation = (share * (away - (share * away).sum(0)).square()).sum(0).sqrt()
    return torch.where(deviation > 0, deviation, 1.0)


def canonical_bandwidth(kernel: str) -> float:
    """Return (R / mu^2)^(1/5), with the roughness R and the variance mu of a kernel.

    References:
        J. Marron and D. Nolan, Canonical kernels for density estimation, Statistics and Probability Letters 7 (1988).
    """
    return (KERNELS[kernel].roughness / KERNELS[kernel].variance ** 2) ** 0.2


def canonical_ratio(kernel: str) -> float:
    """Return how many times wider than a Gaussian this kernel must be to smooth as much."""
    return canonical_bandwidth(kernel) / canonical_bandwidth("gaussian")


# --- Checks and warnings -----------------------------------------------------------------------------------------


def check_found(criterion: str, value: float, rows: int) -> None:
    """Refuse a smallest criterion that is not finite: it has compared nothing."""
    if not math.isfinite(value):
        raise RegardError(
            "bandwidth",
            got=f"{criterion!r}, which is infinite or NaN at every bandwidth tried ({rows} rows)",
            needed="a criterion that can compare bandwidths",
            repair="Pass a number as bandwidth, or more rows; y that is fitted exactly, or whose squares overflow, "
            "leaves nothing to compare.",
        )


def check_counts(smoother: Smoother) -> None:
    """Refuse weights with a sum below 3 for three or more rows: they cannot be numbers of repetitions."""
    rows, total = len(smoother.data.key), smoother.total_weight()
    if total < 3 <= rows:
        raise RegardError(
            "sample_weight",
            got=f"weights that sum to {total:.3g} over {rows} rows",
            needed="a number of repetitions for each row, because observations are counted here",
            repair="Multiply weights that sum to 1 by the number of rows.",
        )


def check_rows(data: Observations, criterion: str) -> None:
    """Refuse a single row: a criterion needs another one to compare with."""
    if len(data.key) < 2:
        raise RegardError(
            "X",
            got="1 sample",
            needed=f"at least two with a positive weight, to choose a bandwidth by {criterion!r}",
            repair="Pass more rows, or a number as bandwidth.",
        )


def _warn_at_edge(evaluator: CriterionEvaluator, low: float, high: float, degree: int) -> None:
    position = evaluator.lowest()
    if position <= low:
        _warn(
            "the criterion is smallest at the narrowest bandwidth tried: rows of X may repeat or nearly so, or y has "
            "no noise; pass a number if this is not what you want"
        )
    elif position >= high:
        _warn(
            "the criterion is smallest at the widest bandwidth tried, beyond the range of X: "
            + ("X tells little about y, and the curve is nearly constant", "one straight line fits best")[degree]
        )


def _warn(text: str) -> None:
    warnings.warn(text, BandwidthWarning, stacklevel=2)
