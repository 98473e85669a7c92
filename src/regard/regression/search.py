"""The search for a width by a criterion: which widths are tried, on which rows, and what is said about the result.

One factor is searched for, in its logarithm: in one dimension it is the width itself, in several it multiplies the
standard deviation of each column. A grid is scanned first, from well below the usual distance between neighbours to
beyond the range of the data, its low ground is scanned again, and every valley that may hold the minimum is polished.
Compact kernels make the criterion rough, so their grid is finer, most of all where it is low; a dip narrower than that
may be missed. The lowest value found is taken, and of equal values the widest width.

Beyond SCAN_ROWS rows the grid is scanned on that many rows, drawn with a fixed seed; the result is carried over by
the rate n^(-1/(d + 4)), and the valley around it is found and polished on all rows. What is finer than the sample (a
daily cycle in years of hours) shows on all rows only: widths too narrow for the sample are tried there, and where one
does better its valley is polished, too.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import side_by_side
from regard.regression.criteria import CRITERIA
from regard.regression.minimum import Curve, Scan, minimise, polish
from regard.regression.rules import relative_to_gaussian, spread
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.regression.warning_kinds import BandwidthWarning

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


class Found(NamedTuple):
    """smoother: with the width that was found. value: its criterion. alone: rows without a neighbour at that width."""

    smoother: Smoother
    value: float
    alone: int
    trials: Trials


class Judge:
    """A criterion on the data of one smoother; it remembers the judgements, so that none is computed twice."""

    def __init__(self, smoother: Smoother, criterion: str, exclude: int, verbose: int) -> None:
        """The width of the smoother does not matter."""
        self.smoother = smoother
        self.exclude = exclude
        self.criterion = criterion
        self.verbose = verbose
        self.alone: dict[float, int] = {}
        self.unit = None if smoother.data.key.shape[-1] == 1 else spread(smoother.data)

    def at(self, place: float) -> float:
        """The criterion where the logarithm of the factor is `place`."""
        judgement = CRITERIA[self.criterion](self.smoother_at(place), self.exclude)
        return self.remember(place, float(judgement.value), judgement.alone)

    @property
    def scan(self) -> Scan | None:
        """The criterion at many places at once, where there is such a way."""
        return self._at_all if side_by_side.suits(self.smoother, self.criterion, self.exclude) else None

    def _at_all(self, places: Sequence[float]) -> list[float]:
        judgements = side_by_side.judge(self.smoother, [math.exp(place) for place in places])
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

    def sampled(self) -> tuple["Judge", float]:
        """The same criterion on SCAN_ROWS rows, and their share of all rows."""
        return _sampled(self)


def find_width(judge: Judge) -> Found:
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


def _found(judge: Judge, curve: Curve) -> Found:
    best = curve.best()
    place = curve.places[best]
    trials = Trials(np.exp(curve.places), np.array(curve.values))
    return Found(judge.smoother_at(place), curve.values[best], judge.alone[place], trials)


def _range_of_places(smoother: Smoother, unit: Tensor | None) -> tuple[float, float]:
    """Logarithms of the narrowest and the widest factor to try; equal where all rows are."""
    key = smoother.data.key.double()
    extent = key.amax(0) - key.amin(0)
    if not bool((extent > 0).any()):
        return 0.0, 0.0
    ratio = relative_to_gaussian(smoother.kernel)
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


def _sampled(judge: Judge) -> tuple[Judge, float]:
    """The same criterion on SCAN_ROWS rows, and their share of all rows."""
    data = judge.smoother.data
    order = torch.randperm(len(data.key), generator=torch.Generator().manual_seed(0))
    rows = order[:SCAN_ROWS].sort().values.to(data.key.device)
    sample = data.at(rows)
    share = SCAN_ROWS / len(data.key)
    # Rows that are neighbours in time are closer to each other in the sample.
    sampled = Judge(replace(judge.smoother, data=sample), judge.criterion, math.ceil(judge.exclude * share), 0)
    sampled.unit = judge.unit
    return sampled, share


def _valley(judge: Judge, start: float, within: tuple[float, float]) -> Curve:
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


def _add_finer_valley(judge: Judge, curve: Curve, sample: Judge, within: tuple[float, float]) -> None:
    """Look for a lower valley at widths at which rows of the sample have too few neighbours to show one."""
    low, high = within
    lowest_of_sample, highest_of_sample = sample.range_of_places()
    # A sample of equal rows shows no valley at all.
    shown_from = lowest_of_sample + 2 * GRID_STEP if lowest_of_sample < highest_of_sample else high
    places = np.arange(low, min(shown_from, high), GRID_STEP).tolist()
    if not places:
        return
    # Local means tell whether there is one in a fraction of the time of lines.
    means = Judge(replace(judge.smoother, degree=0), judge.criterion, judge.exclude, 0)
    means.unit = judge.unit
    fine = _evaluated(means, places)
    best = fine.best()
    if fine.values[best] < curve.values[curve.best()]:
        curve.join(_valley(judge, fine.places[best], within))


def _evaluated(judge: Judge, places: list[float]) -> Curve:
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
