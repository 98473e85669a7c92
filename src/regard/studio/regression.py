"""The regression room's answers: the fitted curve, its band, and the weights at one query (eq. 4)."""

import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.errors import RegardError
from regard.regression import BandwidthWarning, NadarayaWatson
from regard.regression.experiment import data
from regard.scores.names import KERNEL_SCORES
from regard.studio.asked import Asked
from regard.studio.limits import MOST_BYTES, MOST_POINTS, PLACES

WIDEST = 1e9
CRITERIA = ("loo", "aicc", "gcv")
LEVELS = (0.5, 0.999)

# Python's warnings have one state for all threads.
_WARNINGS = threading.Lock()


def offer() -> dict[str, Any]:
    """What the page may choose from, and the points it begins with: the chapter's."""
    x, y = data.samples()
    return {
        "kernels": list(KERNEL_SCORES),
        "criteria": list(CRITERIA),
        "most": MOST_POINTS,
        "most_bytes": MOST_BYTES,
        "places": PLACES,
        "x": x.tolist(),
        "y": y.tolist(),
    }


@torch.inference_mode()  # a fit is some hundred small operations, which cost less where none may be differentiated
def fit(asked: Asked) -> dict[str, Any]:
    """The curve between two places, and what it is made of at the query.

    asked: x, y (points); kernel; bandwidth (a number) or criterion (its name, and the width is searched for);
    degree 0 or 1; low, high: where the curve is drawn; query; band: whether the band is wanted too; level: its;
    whole: whether everything is, the band and the degrees of freedom, which a hand that drags does not wait for.
    """
    x, y = asked.numbers("x", MOST_POINTS), asked.numbers("y", MOST_POINTS)
    _check_points(x, y)
    low, high = asked.number("low", -WIDEST, WIDEST), asked.number("high", -WIDEST, WIDEST)
    kernel, degree = asked.choice("kernel", tuple(KERNEL_SCORES)), asked.whole("degree", 0, 1, 0)
    query = asked.number("query", -WIDEST, WIDEST)
    level = asked.number("level", *LEVELS, otherwise=0.95)
    criterion = asked.choice("criterion", ("", *CRITERIA), "")
    width: float | str = criterion or asked.number("bandwidth", 1e-9, WIDEST)
    if criterion and len(set(x)) < 3:
        raise RegardError(
            "points",
            got=f"{len(set(x))} different x",
            needed="at least 3, so that each can be predicted from the others",
            repair="Draw some more points.",
        )
    # Where no point is in the window the page draws a gap; the policy here only keeps the estimator from warning.
    model = NadarayaWatson(kernel, width, degree=degree, empty="nearest")
    told = _fit(model, x, y)
    places = np.append(np.linspace(low, high, PLACES), query)[:, None]
    whole = asked.flag("whole")
    curve = _band(model, places, level) if whole or asked.flag("band") else _curve(model, places)
    seen = np.isfinite(curve.log_mass)
    shown = {name: _plain(np.where(seen, part, np.nan)) for name, part in curve.parts.items()}
    weights = model.weights(places[-1:])[0] if seen[-1] else np.zeros(len(x))
    return {
        "bandwidth": float(np.asarray(model.bandwidth_)),
        "places": places[:-1, 0].tolist(),
        **{name: part[:-1] for name, part in shown.items()},
        "weights": weights.tolist(),
        "at": {"query": query, **{name: part[-1] for name, part in shown.items()}, "rests_on": _rests_on(weights)},
        "degrees_of_freedom": model.effective_degrees_of_freedom_ if whole else None,
        "gaps": int((~seen[:-1]).sum()),
        "notes": [text for text in (curve.note, *told) if text],
    }


class Curve(NamedTuple):
    """The estimate at some places.

    parts: mean, and lower and upper where there is a band, each (places,). log_mass: (places,), minus infinity where no
    point is in the window. note: why there is no band.
    """

    parts: dict[str, np.ndarray]
    log_mass: np.ndarray
    note: str = ""


def _fit(model: NadarayaWatson, x: list[float], y: list[float]) -> list[str]:
    """Fit; what the search for a width had to say is returned as sentences."""
    points = np.array(x)[:, None], np.array(y)
    if not isinstance(model.bandwidth, str):
        model.fit(*points)
        return []
    with _WARNINGS, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", BandwidthWarning)
        model.fit(*points)
    return [str(warning.message) for warning in told if issubclass(warning.category, BandwidthWarning)]


def _band(model: NadarayaWatson, places: np.ndarray, level: float) -> Curve:
    """Mean and band; where the noise cannot be told, the mean alone and the reason."""
    try:
        band = model.confidence_band(places, level=level)
    except RegardError as refusal:
        return _curve(model, places)._replace(note=f"No band: {refusal}")
    # The band has no error exactly where the window is empty, so the masses need not be summed again.
    log_mass = np.where(np.isnan(band.standard_error), -np.inf, 0.0)
    return Curve({"mean": band.mean, "lower": band.lower, "upper": band.upper}, log_mass)


def _curve(model: NadarayaWatson, places: np.ndarray) -> Curve:
    if model.degree == 1:
        return Curve({"mean": model.predict(places)}, model.log_mass(places))
    pooled = model.pool(places)
    return Curve({"mean": np.asarray(pooled.mean)[:, 0]}, np.asarray(pooled.log_mass))


def _rests_on(weights: np.ndarray) -> float:
    """How many points of equal weight would make as steady a mean: 1 / sum of squared weights; 0 of none."""
    squares = float(np.square(weights).sum())
    return 1 / squares if squares > 0 else 0.0


def _plain(numbers: np.ndarray) -> list[float | None]:
    return [float(number) if np.isfinite(number) else None for number in numbers]


def _check_points(x: list[float], y: list[float]) -> None:
    if not x or len(x) != len(y):
        raise RegardError(
            "points",
            got=f"{len(x)} x and {len(y)} y",
            needed="at least one point, with one x and one y each",
            repair="Draw a point in the plot, or load a CSV file.",
        )
    for axis, numbers in (("x", x), ("y", y)):
        if max(map(abs, numbers)) > WIDEST:
            raise RegardError(
                "points",
                got=f"a point with {axis} = {max(numbers, key=abs):g}",
                needed=f"numbers up to {WIDEST:g}",
                repair="Choose a larger unit.",
            )
