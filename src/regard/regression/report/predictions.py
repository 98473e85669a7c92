"""Predictions as a CSV file: where, what, and how sure; every number reads back exactly."""

import csv
import warnings
from typing import NamedTuple

import numpy as np

from regard.errors import RegardError
from regard.regression.report.fitted import Fitted
from regard.regression.report.places import grid_over
from regard.regression.report.wishes import Wishes


class Predictions(NamedTuple):
    """places: (places, dim). answers: mean, lower, upper, standard error, log mass, each (places,). notes: warnings."""

    places: np.ndarray
    answers: tuple[np.ndarray, ...]
    notes: tuple[str, ...]


def predict(wishes: Wishes, fitted: Fitted, elsewhere: np.ndarray | None) -> Predictions:
    """Predict at the places of another file, on a grid, or at the rows of the data.

    elsewhere: (places, dim), or None.
    """
    if elsewhere is not None:
        places = elsewhere
    else:
        places = fitted.x if wishes.grid is None else grid_over(fitted.x, wishes.grid)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        band = fitted.model.confidence_band(places, wishes.level, wishes.variance)
        log_mass = fitted.model.log_mass(places)
    return Predictions(places, (*band, log_mass), tuple(str(warning.message) for warning in caught))


def write(wishes: Wishes, fitted: Fitted, predicted: Predictions) -> None:
    """Write the file; at the rows of the data it holds the observations too."""
    assert wishes.predictions is not None
    observed = wishes.predict_at is None and wishes.grid is None
    header = [*wishes.x, *([wishes.y] if observed else []), *_names(wishes)]
    columns = [*predicted.places.T, *([fitted.y] if observed else []), *predicted.answers]
    try:
        with wishes.predictions.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            # Python's floats write the shortest text that reads back as the same number.
            writer.writerows(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
    except OSError as refusal:
        raise RegardError(
            "predictions",
            got=f"{wishes.predictions} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None


def _names(wishes: Wishes) -> list[str]:
    share = f"{100 * wishes.level:g}%"
    return [f"predicted {wishes.y}", f"lower {share}", f"upper {share}", "standard error", "log mass"]
