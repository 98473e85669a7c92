"""The lowest point of a curve with several valleys: scan a grid, then polish every valley that could hold it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

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
