"""Charts that stay as they are: records of what is drawn, which the page renders in its own style."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One curve. points: (x, y) in order of x. band: (x, low, high) around it.

    kind: its look: "truth", or a colour from "c0" to "c5", with " dashed" after it or not.
    marks: whether every point is marked.
    """

    name: str
    points: Sequence[Sequence[float]]
    kind: str
    band: Sequence[Sequence[float]] = ()
    marks: bool = False


@dataclass(frozen=True)
class Curves:
    """Curves over one pair of axes.

    x, y: the ranges. log_x, log_y: logarithmic. ticks: along x; without them even ones.
    places: where a marker may stand, one for each step of a control. caption: a sentence below it, where it needs one.
    """

    series: Sequence[Series]
    x: tuple[float, float]
    y: tuple[float, float]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()
    places: Sequence[float] = ()
    caption: str = ""


@dataclass(frozen=True)
class Bar:
    """One bar from 0 to value, with an interval unless low is high. text: the number in words. kind: its look."""

    name: str
    value: float
    low: float
    high: float
    text: str
    kind: str = "c0"


@dataclass(frozen=True)
class Bars:
    """Bars below each other. most: the value of the whole width. keys: what each look means, (name, look).

    caption: a sentence below them, where they need one.
    """

    bars: Sequence[Bar]
    most: float
    keys: Sequence[tuple[str, str]] = ()
    caption: str = ""
