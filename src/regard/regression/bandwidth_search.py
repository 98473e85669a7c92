"""Minimise a criterion over the bandwidth."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import BandwidthWarning, criteria
from regard.regression.criteria import CRITERIA
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS

RULES = ("scott", "silverman")


def canonical_bandwidth(kernel: str) -> float:
    """Return (R(K) / mu2(K)^2)^(1/5), where R(K) is the roughness and mu2(K) the variance of a kernel."""
    return (KERNELS[kernel].roughness / KERNELS[kernel].variance ** 2) ** 0.2


def canonical_ratio(kernel: str) -> float:
    """Return how much wider this kernel must be to smooth as much as a Gaussian of width 1."""
    return canonical_bandwidth(kernel) / canonical_bandwidth("gaussian")


def standard_deviation(data: Observations) -> Tensor:
    """(dim,): the standard deviation of each column, repetitions counted; 1 where a column is constant."""
    key = data.key.double()
    weight = torch.ones_like(key[:, 0]) if data.weight is None else data.weight.double()
    share = (weight / weight.sum()).unsqueeze(-1)
    # Relative to the first row, so that an offset of a constant column does not look like spread.
    away = key - key[0]
    deviation = (share * (away - (share * away).sum(0)).square()).sum(0).sqrt()
    return torch.where(deviation > 0, deviation, 1.0)


def reference_bandwidth(rule: str, data: Observations, kernel: str) -> Tensor:
    """(dim,): the width of each dimension."""
    dim = data.key.shape[-1]
    n = len(data.key) if data.weight is None else float(data.weight.double().sum())
    constant = 1.0 if rule == "scott" else (4 / (dim + 2)) ** (1 / (dim + 4))
    return standard_deviation(data) * constant * n ** (-1 / (dim + 4)) * canonical_ratio(kernel)


MOST_STEPS = 12
# Once a step is shorter than this, two points at a distance pin the slope down: by three points far apart a valley may
# look settled that is not, and points too close to each other differ by the rounding of their values only.
NEAR = 0.02
APART = 0.01
SETTLED = 1e-3
# The low ground of a curve is scanned again: so many of its lowest gaps, with so many places in each. Of a smooth curve
# low is an end below this share of the way from the lowest value to the highest, of a rough one near to the lowest.
LOW, GAPS = 0.25, 6
NEARLY, GAPS_OF_ROUGH, INSIDE_ROUGH = 0.02, 12, 4


Scan = Callable[[Sequence[float]], Sequence[float]]


class Minimum(NamedTuple):
    """place and value of the lowest point; edge: -1 or 1 where it is the first or the last place of the grid."""

    place: float
    value: float
    edge: int


class Curve:
    """A function and the points at which it was evaluated, in order of their places."""

    def __init__(self, function: Callable[[float], float], rounding: float, scan: Scan | None = None) -> None:
        """rounding: the relative error of a value; what differs by less is a tie, and ties go to the larger place.

        scan: the function at many places at once, where that is faster; its values may be rounded a little more.
        """
        self.function = function
        self.rounding = rounding
        self.scan = scan
        self.scanned: set[float] = set()
        self.places: list[float] = []
        self.values: list[float] = []

    def at(self, place: float) -> float:
        """Evaluate and remember; not a number counts as infinitely bad."""
        return self._remember(place, self.function(place))

    def at_all(self, places: Sequence[float]) -> None:
        """The same at many places."""
        if self.scan is None:
            values = [self.function(place) for place in places]
        else:
            values = self.scan(places)
            self.scanned.update(places)
        for place, value in zip(places, values, strict=True):
            self._remember(place, value)

    def settle(self) -> None:
        """Evaluate the lowest point by the function itself, if it comes from a scan."""
        best = self.best()
        if self.places[best] in self.scanned:
            self.values[best] = self.function(self.places[best])

    def join(self, other: "Curve") -> None:
        """Remember what another curve of the same function knows."""
        for place, value in zip(other.places, other.values, strict=True):
            if place not in self.places:
                self._remember(place, value)

    def _remember(self, place: float, value: float) -> float:
        value = float("inf") if np.isnan(value) else value
        index = int(np.searchsorted(self.places, place))
        self.places.insert(index, place)
        self.values.insert(index, value)
        return value

    def best(self) -> int:
        """The index of the lowest point, the last of those that tie."""
        values = np.array(self.values)
        lowest = values.min()
        return int(np.flatnonzero(values <= lowest + self.rounding * abs(lowest))[-1])


def minimise(
    function: Callable[[float], float],
    grid: Sequence[float],
    rounding: float,
    *,
    rough: bool = False,
    scan: Scan | None = None,
) -> tuple[Minimum, Curve]:
    """The lowest point over the range of the grid.

    The low ground is scanned again, more finely; it must then show each valley as one point lower than its neighbours.
    Valleys are polished in order of their depth, as long as a
    parabola through three points lets them reach below the best one so far.
    """
    curve = Curve(function, rounding, scan)
    curve.at_all(grid)
    values = np.array(curve.values)
    if not np.isfinite(values).any():
        return Minimum(curve.places[-1], float("inf"), 1), curve
    lowest, highest = values.min(), values[np.isfinite(values)].max(initial=-np.inf)
    if rough:
        _scan_low_ground(curve, lowest + NEARLY * abs(lowest), GAPS_OF_ROUGH, INSIDE_ROUGH)
    else:
        _scan_low_ground(curve, lowest + LOW * (highest - lowest), GAPS, 1)
    places, values = list(curve.places), list(curve.values)
    valleys = [i for i in range(1, len(places) - 1) if values[i] <= values[i - 1] and values[i] <= values[i + 1]]
    hopes = sorted((_hope(places[i - 1 : i + 2], values[i - 1 : i + 2]), places[i]) for i in valleys)
    for hope, place in hopes:
        if hope <= min(curve.values):
            polish(curve, place)
    curve.settle()
    best = curve.best()
    edge = -1 if best == 0 else (1 if best == len(curve.places) - 1 else 0)
    return Minimum(curve.places[best], curve.values[best], edge), curve


def _scan_low_ground(curve: Curve, below: float, most: int, inside: int) -> None:
    """Evaluate that many more places in the gaps of the grid with an end at or below a value, the lowest gaps first."""
    places, values = np.array(curve.places), np.array(curve.values)
    lower_end = np.minimum(values[:-1], values[1:])
    low = np.flatnonzero(lower_end <= below)
    gaps = low[np.argsort(lower_end[low], kind="stable")[:most]]
    curve.at_all([float(x) for gap in gaps for x in np.linspace(places[gap], places[gap + 1], inside + 2)[1:-1]])


def polish(curve: Curve, place: float) -> None:
    """Evaluate the curve at better and better places of the valley around one that was evaluated."""
    pinned = False
    for _ in range(MOST_STEPS):
        index = curve.places.index(place)
        if index == 0 or index == len(curve.places) - 1:
            return
        target = _interpolated(curve, index)
        if target is None:
            # Golden section of the wider side: slower than interpolation, but a rough curve does not mislead it.
            left, right = curve.places[index - 1], curve.places[index + 1]
            target = place + 0.381966 * ((left if place - left > right - place else right) - place)
        step = abs(target - place)
        place = _lower(curve, place, target)
        if pinned and step < SETTLED:
            return
        if not pinned and step < NEAR:
            pinned = True
            for side in (-APART, APART):
                place = _lower(curve, place, min(max(target + side, curve.places[0]), curve.places[-1]))


def _lower(curve: Curve, place: float, target: float) -> float:
    """Evaluate the curve at the target too, and return the place of the two where it is lower."""
    if target not in curve.places:
        curve.at(target)
    values = (curve.values[curve.places.index(where)] for where in (place, target))
    return target if next(values) >= next(values) else place


def _interpolated(curve: Curve, index: int) -> float | None:
    """The lowest point between the neighbours, of the polynomial through the five points nearest to one of them."""
    places, values = np.array(curve.places), np.array(curve.values)
    here, left, right = places[index], places[index - 1], places[index + 1]
    usable = np.flatnonzero(np.isfinite(values))
    nearest = _spread(places, usable[np.argsort(np.abs(places[usable] - here), kind="stable")], 5)
    reach = float(np.abs(places[nearest] - here).max(initial=0.0))
    if len(nearest) < 3 or reach == 0 or not np.isfinite(values[index - 1 : index + 2]).all():
        return None
    powers = np.vander((places[nearest] - here) / reach)
    polynomial = np.linalg.solve(powers, values[nearest] - values[index])
    flat = np.roots(np.polyder(polynomial))
    flat = flat[np.abs(flat.imag) < 1e-9].real
    inside = flat[(flat * reach + here > left) & (flat * reach + here < right)]
    if not len(inside):
        return None
    return float(inside[np.argmin(np.polyval(polynomial, inside))] * reach + here)


def _spread(places: np.ndarray, order: np.ndarray, most: int) -> np.ndarray:
    """The first indices in their order, without those whose place is too close to an earlier one."""
    kept: list[int] = []
    for index in order:
        if len(kept) == most:
            break
        if all(abs(places[index] - places[other]) >= APART / 2 for other in kept):
            kept.append(int(index))
    return np.array(kept, dtype=int)


def _hope(places: Sequence[float], values: Sequence[float]) -> float:
    """How low a valley may reach: four times as far below its middle as the parabola through three points does."""
    middle = values[1]
    if not np.isfinite(values).all():
        return middle
    (left, right) = (places[0] - places[1], places[2] - places[1])
    slopes = (values[0] - middle) / left, (values[2] - middle) / right
    bend = (slopes[1] - slopes[0]) / (right - left)
    if bend <= 0:
        return middle
    slope = slopes[0] - bend * left
    return middle - slope * (slope / bend)


SCAN_ROWS = 8192
GRID_STEP = 0.7
GRID_STEP_OF_COMPACT = 0.15
SMOOTH_KERNELS = ("gaussian", "laplacian")


class Trials(NamedTuple):
    """What was tried on all rows, in increasing order, and the criterion of each.

    tried: factors of the standard deviations, in one dimension the widths themselves; or numbers of neighbours.
    """

    tried: np.ndarray
    values: np.ndarray


class SelectedBandwidth(NamedTuple):
    """smoother: with the width that was found. value: its criterion. alone: rows without a neighbour at that width."""

    smoother: Smoother
    value: float
    alone: int
    trials: Trials


class CriterionEvaluator:
    """A criterion on the data of one smoother; it remembers the judgements, so that none is computed twice."""

    def __init__(self, smoother: Smoother, criterion: str, exclude: int, verbose: int) -> None:
        """The width of the smoother does not matter."""
        self.smoother = smoother
        self.exclude = exclude
        self.criterion = criterion
        self.verbose = verbose
        self.alone: dict[float, int] = {}
        self.unit = None if smoother.data.key.shape[-1] == 1 else standard_deviation(smoother.data)

    def at(self, place: float) -> float:
        """The criterion where the logarithm of the factor is `place`."""
        judgement = CRITERIA[self.criterion](self.smoother_at(place), self.exclude)
        return self.remember(place, float(judgement.value), judgement.alone)

    @property
    def scan(self) -> Scan | None:
        """The criterion at many places at once, where there is such a way."""
        return self._at_all if criteria.can_evaluate_many(self.smoother, self.criterion, self.exclude) else None

    def _at_all(self, places: Sequence[float]) -> list[float]:
        judgements = criteria.evaluate_many(self.smoother, [math.exp(place) for place in places])
        pairs = zip(places, judgements, strict=True)
        return [self.remember(place, float(found.value), found.alone) for place, found in pairs]

    def remember(self, place: float, value: float, alone: int) -> float:
        """Keep what was found at a place, and say it where that is wanted."""
        self.alone[place] = alone
        if self.verbose > 1:
            print(f"[regard] {self.criterion} at factor {math.exp(place):.6g}: {value:.8g}")
        return value

    def smoother_at(self, place: float) -> Smoother:
        """The smoother whose width is that factor times the unit."""
        factor = math.exp(place)
        data = self.smoother.data
        width = factor if self.unit is None else (self.unit * factor).to(data.key.dtype)
        return replace(self.smoother, width=width)

    @property
    def rows(self) -> int:
        """How many rows are judged."""
        return len(self.smoother.data.key)

    def range_of_places(self) -> tuple[float, float]:
        """Logarithms of the narrowest and the widest factor to try; equal where all rows are."""
        return _range_of_places(self.smoother, self.unit)

    def sampled(self) -> tuple["CriterionEvaluator", float]:
        """The same criterion on SCAN_ROWS rows, and their share of all rows."""
        return _sampled(self)


def minimize(judge: CriterionEvaluator) -> SelectedBandwidth:
    """The width with the smallest criterion."""
    smoother, criterion = judge.smoother, judge.criterion
    check_rows(smoother.data, criterion)
    if criterion != "loo":
        check_counts(smoother)
    low, high = judge.range_of_places()
    if low == high:
        _warn("all rows of X are equal, so that every bandwidth gives the same curve: 1 was taken")
        return _found(judge, _evaluated(judge, [0.0]))
    rough = smoother.kernel not in SMOOTH_KERNELS
    step = GRID_STEP_OF_COMPACT if rough else GRID_STEP
    grid = np.linspace(low, high, max(math.ceil((high - low) / step), 2) + 1).tolist()
    if judge.rows > SCAN_ROWS:
        sample, share = judge.sampled()
        lowest, _ = minimise(sample.at, grid, _rounding(smoother.data), rough=rough, scan=sample.scan)
        dim = smoother.data.key.shape[-1]
        curve = _valley(judge, lowest.place + math.log(share) / (dim + 4), (low, high))
        _add_finer_valley(judge, curve, sample, (low, high))
    else:
        _, curve = minimise(judge.at, grid, _rounding(smoother.data), rough=rough, scan=judge.scan)
    found = _found(judge, curve)
    check_found(criterion, found.value, judge.rows)
    _say_if_at_edge(curve, low, high, smoother.degree)
    if judge.verbose:
        print(f"[regard] {criterion} {found.value:.8g} after {len(curve.places)} evaluations on all rows")
    return found


def check_found(criterion: str, value: float, rows: int) -> None:
    """A smallest criterion that is not finite has compared nothing."""
    if not math.isfinite(value):
        raise RegardError(
            "bandwidth",
            got=f"{criterion!r}, which is no finite number at any width, for {rows} rows",
            needed="a criterion that can compare widths",
            repair="Pass a number as bandwidth, or more rows; y that is fitted exactly, or whose squares overflow, "
            "leaves nothing to compare.",
        )


def check_counts(smoother: Smoother) -> None:
    """Refuse weights that are shares of one where observations are counted."""
    rows, total = len(smoother.data.key), smoother.total()
    if total < 3 <= rows:
        raise RegardError(
            "sample_weight",
            got=f"weights that sum to {total:.3g} over {rows} rows",
            needed="a number of repetitions for each row: here observations are counted",
            repair="Multiply weights that are shares by the number of rows.",
        )


def check_rows(data: Observations, criterion: str) -> None:
    """A criterion needs another row to compare with."""
    if len(data.key) < 2:
        raise RegardError(
            "X",
            got="1 sample",
            needed=f"at least two with a positive weight, to choose a bandwidth by {criterion!r}",
            repair="Pass more rows, or a number as bandwidth.",
        )


def _found(judge: CriterionEvaluator, curve: Curve) -> SelectedBandwidth:
    best = curve.best()
    place = curve.places[best]
    trials = Trials(np.exp(curve.places), np.array(curve.values))
    return SelectedBandwidth(judge.smoother_at(place), curve.values[best], judge.alone[place], trials)


def _range_of_places(smoother: Smoother, unit: Tensor | None) -> tuple[float, float]:
    """Logarithms of the narrowest and the widest factor to try; equal where all rows are."""
    key = smoother.data.key.double()
    extent = key.amax(0) - key.amin(0)
    if not bool((extent > 0).any()):
        return 0.0, 0.0
    ratio = canonical_ratio(smoother.kernel)
    if unit is None:
        spacing = _spacing(smoother.data)
        tiny = torch.finfo(key.dtype).tiny  # neighbours may be nearer than a normal number
        return math.log(max(0.35 * spacing * ratio, tiny)), math.log(max(3 * float(extent) * ratio, 8 * tiny))
    count, dim = key.shape
    widest = 3 * float((extent / unit).max()) * math.sqrt(dim)
    # Weights may be shares of one: the rows are no fewer for that.
    narrowest = 0.25 * max(smoother.total(), count) ** (-1 / dim)
    return math.log(narrowest * ratio), math.log(widest * ratio)


def _spacing(data: Observations) -> float:
    """The usual distance between neighbouring values of the only column, which are not all equal.

    This is the median distance, or, if smaller, the median that counts each distance once for every row at its ends.
    Without repeated values both are the same. A cluster that holds most of the rows, but few of the distinct values,
    decides the second one.
    """
    place, index = data.key[:, 0].double().unique(return_inverse=True)
    rows = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    rows = torch.zeros_like(place).index_add_(0, index, rows.double())
    distance, order = place.diff().sort()
    covered = (rows[:-1] + rows[1:])[order].cumsum(0)
    middle = int(torch.searchsorted(covered, covered[-1] / 2))
    return min(float(distance.median()), float(distance[middle]))


def _sampled(judge: CriterionEvaluator) -> tuple[CriterionEvaluator, float]:
    """The same criterion on SCAN_ROWS rows, and their share of all rows."""
    data = judge.smoother.data
    order = torch.randperm(len(data.key), generator=torch.Generator().manual_seed(0))
    rows = order[:SCAN_ROWS].sort().values.to(data.key.device)
    sample = data.at(rows)
    share = SCAN_ROWS / len(data.key)
    # Rows that are neighbours in time are closer to each other in the sample.
    sampled = CriterionEvaluator(
        replace(judge.smoother, data=sample), judge.criterion, math.ceil(judge.exclude * share), 0
    )
    sampled.unit = judge.unit
    return sampled, share


def _valley(judge: CriterionEvaluator, start: float, within: tuple[float, float]) -> Curve:
    """The curve on all rows around a first guess: walk down until both neighbours are higher, then polish."""
    low, high = within
    start = min(max(start, low), high)
    curve = _evaluated(judge, sorted({max(start - GRID_STEP / 2, low), start, min(start + GRID_STEP / 2, high)}))
    while True:
        best = curve.best()
        if best == 0 and curve.places[0] > low:
            curve.at(max(curve.places[0] - GRID_STEP / 2, low))
        elif best == len(curve.places) - 1 and curve.places[-1] < high:
            curve.at(min(curve.places[-1] + GRID_STEP / 2, high))
        else:
            break
    polish(curve, curve.places[best])
    return curve


def _add_finer_valley(
    judge: CriterionEvaluator, curve: Curve, sample: CriterionEvaluator, within: tuple[float, float]
) -> None:
    """Look for a lower valley at widths at which rows of the sample have too few neighbours to show one."""
    low, high = within
    lowest_of_sample, highest_of_sample = sample.range_of_places()
    # A sample of equal rows shows no valley at all.
    shown_from = lowest_of_sample + 2 * GRID_STEP if lowest_of_sample < highest_of_sample else high
    places = np.arange(low, min(shown_from, high), GRID_STEP).tolist()
    if not places:
        return
    # Local means tell whether there is one in a fraction of the time of lines.
    means = CriterionEvaluator(replace(judge.smoother, degree=0), judge.criterion, judge.exclude, 0)
    means.unit = judge.unit
    fine = _evaluated(means, places)
    best = fine.best()
    if fine.values[best] < curve.values[curve.best()]:
        curve.join(_valley(judge, fine.places[best], within))


def _evaluated(judge: CriterionEvaluator, places: list[float]) -> Curve:
    curve = Curve(judge.at, _rounding(judge.smoother.data))
    for place in places:
        curve.at(place)
    return curve


def _rounding(data: Observations) -> float:
    """What two evaluations of one criterion may differ by: sums in another order."""
    return 4 * torch.finfo(data.key.dtype).eps


def _say_if_at_edge(curve: Curve, low: float, high: float, degree: int) -> None:
    place = curve.places[curve.best()]
    if place <= low:
        _warn(
            "the criterion is smallest at the narrowest bandwidth tried: rows of X may repeat or nearly so, or y has "
            "no noise; pass a number if this is not what you want"
        )
    elif place >= high:
        _warn(
            "the criterion is smallest at the widest bandwidth tried, beyond the range of X: "
            + ("X tells little about y, and the curve is nearly constant", "one straight line fits best")[degree]
        )


def _warn(text: str) -> None:
    warnings.warn(text, BandwidthWarning, stacklevel=2)
