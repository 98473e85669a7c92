"""The fit of a file's columns, with everything that is told about it."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import RegardError
from regard.regression.report.columns import read
from regard.regression.report.wishes import Wishes, bandwidth_of


@dataclass(frozen=True)
class Fitted:
    """model: the fitted NadarayaWatson. x: (rows, dim). y: (rows,). dropped: lines left out. notes: its warnings.

    left_out_error: the mean squared error of predicting each row from the others. alone: rows with no other in their
    window. r2, left_out_r2: the share of the variance of y that is explained, with the row itself and without it.
    """

    model: Any
    x: np.ndarray
    y: np.ndarray
    dropped: int
    notes: tuple[str, ...]
    left_out_error: float
    alone: int
    r2: float
    left_out_r2: float


def fit(wishes: Wishes) -> Fitted:
    """Read the columns, check that they can be regressed, and fit."""
    columns = read("file", wishes.file, wishes.wanted, drop_missing=wishes.drop_missing)
    dim = len(wishes.x)
    x, y = columns.numbers[:, :dim], columns.numbers[:, dim]
    weight = columns.numbers[:, dim + 1] if wishes.weights is not None else None
    _check(wishes, x, weight)
    estimator = _estimator()
    model = estimator(wishes.kernel, bandwidth_of(wishes.bandwidth, dim), degree=wishes.degree, empty=wishes.empty)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y, sample_weight=weight)
    from regard.regression.criteria import loo

    judgement = loo(model.smoother_, 0)
    error = float(judgement.value)
    spread = float(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight))
    # A row of weight 0 is left out: its window may be empty.
    kept = slice(None) if weight is None else weight > 0
    residual = np.average((y[kept] - model.predict(x[kept])) ** 2, weights=None if weight is None else weight[kept])
    r2 = _share(float(residual), spread)
    notes = tuple(str(warning.message) for warning in caught)
    return Fitted(model, x, y, columns.dropped, notes, error, judgement.alone, r2, _share(error, spread))


def _share(error: float, spread: float) -> float:
    """R^2; of a constant y it has no meaning."""
    return 1 - error / spread if spread > 0 else float("nan")


def _check(wishes: Wishes, x: np.ndarray, weight: np.ndarray | None) -> None:
    if len(x) < 2:
        raise RegardError(
            "file",
            got=f"{len(x)} row{'' if len(x) == 1 else 's'} of numbers in {wishes.file.name}",
            needed="at least two, to see how y changes with x",
            repair="Check that the file was written to the end.",
        )
    if weight is not None and (weight.min() < 0 or not (weight > 0).sum() > 1):
        raise RegardError(
            "weights",
            got=f"from {weight.min():g} to {weight.max():g}, {int((weight > 0).sum())} of them positive",
            needed="none negative, at least two positive",
            repair="A weight counts repetitions of its row; 0 leaves the row out.",
        )
    counted = x if weight is None else x[weight > 0]
    for name, column in zip(wishes.x, counted.T, strict=True):
        if column.min() == column.max():
            raise RegardError(
                "x",
                got=f"{column[0]:g} in every row of column {name!r}",
                needed="a column whose values differ",
                repair="A constant tells nothing about y: leave it out, or choose another column.",
            )


def _estimator():
    try:
        from regard.regression.estimator import NadarayaWatson
    except ModuleNotFoundError as missing:
        raise RegardError(
            "regress",
            got=f"no module named {missing.name}",
            needed="scikit-learn, whose manners the estimator has",
            repair='Install it with pip install "regard[regression]".',
        ) from None
    return NadarayaWatson
