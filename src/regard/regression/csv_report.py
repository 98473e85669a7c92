"""`regard regress`: fit the columns of a CSV file; print a table, draw a figure, write predictions."""

from __future__ import annotations

import csv
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import plots
from regard.errors import RegardError
from regard.plots.tokens import set_as_words
from regard.regression.csv_columns import as_number, read_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


METHODS = ("loo", "aicc", "gcv", "scott", "silverman")
CRITERIA = ("loo", "aicc", "gcv")
MAX_PLACES = 10**7
MAX_DIGITS = 18  # of k in nearest:k; every such number fits into int64


@dataclass(frozen=True)
class RegressOptions:
    """The arguments of `regard regress`, as they were given.

    x, y, weights: names of columns. bandwidth: as text, see `bandwidth_of`. predict_at: a file with the columns x.
    grid: places along each x. predictions: where the predictions go. out: where the figure goes.
    """

    file: Path
    x: tuple[str, ...]
    y: str
    kernel: str = "gaussian"
    bandwidth: str = "loo"
    degree: int = 0
    weights: str | None = None
    level: float = 0.95
    variance: str = "local"
    empty: str = "nan"
    predict_at: Path | None = None
    grid: int | None = None
    predictions: Path | None = None
    out: Path | None = None
    drop_missing: bool = False

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """Every column with the argument that asked for it, x first, then y, then weights."""
        weights = [] if self.weights is None else [("weights", self.weights)]
        return [*(("x", name) for name in self.x), ("y", self.y), *weights]


def bandwidth_of(text: str, columns: int) -> Any:
    """A number, one for each of the columns x with commas between them, a criterion or a rule, or `Nearest`."""
    from regard.regression.smoother import Nearest

    if text in METHODS:
        return text
    word, _, count = text.partition(":")
    if word == "nearest" and (count in CRITERIA or (count.isdecimal() and 0 < len(count.lstrip("0")) <= MAX_DIGITS)):
        return Nearest(int(count) if count.isdecimal() else count)
    numbers = [as_number(part) or -1.0 for part in text.split(",")]
    if len(numbers) not in (1, columns) or not all(0 < number < math.inf for number in numbers):
        several = f", {columns} of them with commas between" if columns > 1 else ""
        raise RegardError(
            "bandwidth",
            got=f"{text!r:.60}",
            needed=f"a positive number{several}, {', '.join(METHODS)}, or nearest:20",
            repair="Pass --bandwidth loo to have it chosen from the data.",
        )
    return numbers[0] if len(numbers) == 1 else np.array(numbers)


def check_options(wishes: RegressOptions) -> None:
    """Refuse what can be seen to be wrong before any file is read."""
    if wishes.grid is not None and (wishes.grid < 2 or wishes.predict_at is not None):
        raise RegardError(
            "grid",
            got=f"{wishes.grid}{' and --predict-at' if wishes.predict_at is not None else ''}",
            needed="at least 2 places along each x, and no other places beside them",
            repair="Pass --grid 200, or --predict-at with a file.",
        )
    if wishes.grid is not None and (wishes.grid > MAX_PLACES or wishes.grid ** len(wishes.x) > MAX_PLACES):
        count = f"{wishes.grid:,}" if wishes.grid <= sys.maxsize else f"a number of {len(str(wishes.grid))} digits"
        raise RegardError(
            "grid",
            got=f"{count} places along each of {len(wishes.x)} columns",
            needed=f"at most {MAX_PLACES:,} places in all",
            repair="Pass a smaller --grid, or --predict-at with a file.",
        )
    if wishes.predictions is None and (wishes.predict_at is not None or wishes.grid is not None):
        raise RegardError(
            "predictions",
            got="no file, but places to predict at",
            needed="a file to write them into",
            repair="Add --predictions out.csv.",
        )
    bandwidth_of(wishes.bandwidth, len(wishes.x))
    if not 0 < wishes.level < 1:
        raise RegardError(
            "level", got=f"{wishes.level:g}", needed="a number between 0 and 1", repair="Pass --level 0.95."
        )
    if wishes.variance not in ("local", "global"):
        raise RegardError(
            "variance",
            got=f"{wishes.variance!r:.60}",
            needed="local or global",
            repair="Pass --variance global where the noise is the same everywhere.",
        )
    for argument, path in (("out", wishes.out), ("predictions", wishes.predictions)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise RegardError(
                argument,
                got=f"{path} ({'it is a folder' if path.is_dir() else f'there is no folder {path.parent}'})",
                needed="a file in a folder that is there",
                repair="Choose another path, or make the folder.",
            )


def read_queries(wishes: RegressOptions) -> np.ndarray | None:
    """(places, dim): the rows of the other file, where one was named."""
    if wishes.predict_at is None:
        return None
    wanted = [("x", name) for name in wishes.x]
    found = read_columns("predict_at", wishes.predict_at, wanted, drop_missing=wishes.drop_missing).numbers
    if not len(found):
        raise RegardError(
            "predict_at",
            got=f"no row of numbers in {wishes.predict_at.name}",
            needed="at least one place to predict at",
            repair="Check that the file was written to the end.",
        )
    return found


def grid_over(x: np.ndarray, count: int) -> np.ndarray:
    """(places, dim): every combination of `count` evenly spaced values along each column."""
    axes = axes_over(x, count)
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def axes_over(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Evenly spaced values over the range of each column."""
    return [np.linspace(column.min(), column.max(), count) for column in x.T]


@dataclass(frozen=True)
class RegressionReport:
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


def fit_file(wishes: RegressOptions) -> RegressionReport:
    """Read the columns, check that they can be regressed, and fit."""
    columns = read_columns("file", wishes.file, wishes.wanted, drop_missing=wishes.drop_missing)
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

    criterion = loo(model.smoother_, 0)
    error = float(criterion.value)
    spread = float(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight))
    # A row of weight 0 is left out: its window may be empty.
    kept = slice(None) if weight is None else weight > 0
    residual = np.average((y[kept] - model.predict(x[kept])) ** 2, weights=None if weight is None else weight[kept])
    r2 = _share(float(residual), spread)
    notes = tuple(str(warning.message) for warning in caught)
    return RegressionReport(model, x, y, columns.dropped, notes, error, criterion.isolated, r2, _share(error, spread))


def _share(error: float, spread: float) -> float:
    """R^2; of a constant y it has no meaning."""
    return 1 - error / spread if spread > 0 else float("nan")


def _check(wishes: RegressOptions, x: np.ndarray, weight: np.ndarray | None) -> None:
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
        from regard.regression.estimators import NadarayaWatson
    except ModuleNotFoundError as missing:
        raise RegardError(
            "regress",
            got=f"no module named {missing.name}",
            needed="scikit-learn",
            repair='Install it with pip install "regard[regression]".',
        ) from None
    return NadarayaWatson


def format_table(wishes: RegressOptions, fitted: RegressionReport) -> str:
    """One line for each thing that a reader asks of a regression."""
    model = fitted.model
    rows = f"{len(fitted.y)}"
    if fitted.dropped:
        rows += f", and {fitted.dropped} left out since a number was missing"
    lines = [
        ("regression", f"{wishes.y} on {', '.join(wishes.x)}, local {'lines' if wishes.degree else 'means'}"),
        ("rows", rows),
        ("kernel", wishes.kernel),
        ("bandwidth", _width(model.bandwidth_)),
        ("criterion", _criterion(wishes, fitted)),
        ("effective degrees of freedom", f"{model.effective_degrees_of_freedom_:.2f}"),
        ("AICc", f"{model.aicc_:.5g}"),
        ("leave-one-out error", f"{fitted.left_out_error:.6g} (mean squared)"),
        ("R²", f"{fitted.r2:.4f} of the rows themselves, {fitted.left_out_r2:.4f} left out one by one"),
        ("rows alone in their window", f"{fitted.alone}"),
    ]
    return "\n".join(f"{name:<30}{finding}" for name, finding in lines)


def _width(width: object) -> str:
    """As a reader wants it: six digits, per dimension, or the number of neighbours."""
    if isinstance(width, float | np.ndarray):
        return ", ".join(f"{number:.6g}" for number in np.atleast_1d(width).tolist())
    return f"to the nearest {getattr(width, 'k', width)} rows, at each place anew"


def _criterion(wishes: RegressOptions, fitted: RegressionReport) -> str:
    if fitted.model.criterion_ is None:
        return f"none: the bandwidth was {'a rule' if wishes.bandwidth.isalpha() else 'given'}"
    return f"{wishes.bandwidth.rpartition(':')[2]}, {fitted.model.criterion_:.6g} at this bandwidth"


class Predictions(NamedTuple):
    """places: (places, dim). answers: mean, lower, upper, standard error, log mass, each (places,). notes: warnings."""

    places: np.ndarray
    answers: tuple[np.ndarray, ...]
    notes: tuple[str, ...]


def predict(wishes: RegressOptions, fitted: RegressionReport, elsewhere: np.ndarray | None) -> Predictions:
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


def write_predictions(wishes: RegressOptions, fitted: RegressionReport, predicted: Predictions) -> None:
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


def _names(wishes: RegressOptions) -> list[str]:
    share = f"{100 * wishes.level:g}%"
    return [f"predicted {wishes.y}", f"lower {share}", f"upper {share}", "standard error", "log mass"]


PLACES = 401
PLACES_OF_MAP = 81
# More points than this make the file heavy and the picture no clearer.
MOST_POINTS = 2000


def draw(wishes: RegressOptions, fitted: RegressionReport) -> Figure:
    """A figure of one panel, for one or two columns x."""
    figure, (ax,) = plots.canvas(5.6, 3.9)
    shown = _sample(len(fitted.y))
    with plots.house_style(), warnings.catch_warnings(action="ignore"):  # a gap in the curve speaks for itself
        (_curve if fitted.x.shape[1] == 1 else _map)(wishes, fitted, shown, ax)
        ax.set_title(f"{wishes.kernel.removesuffix('_kernel')} kernel, {_title_width(wishes, fitted)}")
        if len(shown) < len(fitted.y):
            note = f"{len(shown)} of {len(fitted.y)} samples are drawn"
            ax.annotate(note, (1, 1.02), xycoords="axes fraction", ha="right", fontsize=8)
    return figure


def _curve(wishes: RegressOptions, fitted: RegressionReport, shown: np.ndarray, ax: Axes) -> None:
    (places,) = axes_over(fitted.x, PLACES)
    found = fitted.model.confidence_band(places[:, None], wishes.level, wishes.variance)
    plots.curves(places, {"fit": found.mean}, points=(fitted.x[shown, 0], fitted.y[shown]), ax=ax)
    label = f"{100 * wishes.level:g}% band of the estimator's mean,\nnot of the true curve"
    plots.band(places, found.lower, found.upper, label=label, ax=ax)
    ax.set(xlabel=wishes.x[0], ylabel=wishes.y)
    set_as_words(ax.xaxis.label, ax.yaxis.label)
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _map(wishes: RegressOptions, fitted: RegressionReport, shown: np.ndarray, ax: Axes) -> None:
    across, up = axes_over(fitted.x, PLACES_OF_MAP)
    table = np.stack(np.meshgrid(across, up), -1)
    heights = fitted.model.predict(table.reshape(-1, 2)).reshape(table.shape[:2])
    points = (*fitted.x[shown].T, fitted.y[shown])
    plots.height_map(across, up, heights, points=points, label=f"{wishes.y}: map fitted, dots observed", ax=ax)
    ax.set(xlabel=wishes.x[0], ylabel=wishes.x[1])
    set_as_words(ax.xaxis.label, ax.yaxis.label)


def _title_width(wishes: RegressOptions, fitted: RegressionReport) -> str:
    width = fitted.model.bandwidth_
    if not isinstance(width, float | np.ndarray):
        return f"nearest {width.k} rows"
    numbers = " and ".join(f"{number:.3g}" for number in np.atleast_1d(width).tolist())
    chosen = f" by {wishes.bandwidth}" if wishes.bandwidth.isalpha() else ""
    return f"bandwidth {numbers}{chosen}"


def _sample(rows: int) -> np.ndarray:
    """Which rows are drawn: all, or as many as a figure can show, the same ones every time."""
    if rows <= MOST_POINTS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, MOST_POINTS, replace=False))


DRAWN = (1, 2)


def run(asked: RegressOptions) -> RegressionReport:
    """Fit a file, write what was asked for, print its table; what is wrong is refused before anything is written.

    Files are written before the table is printed: a closed pipe must not lose them.
    """
    check_options(asked)
    if asked.out is not None:
        plots.check_format(asked.out)
    elsewhere = read_queries(asked)
    fitted = fit_file(asked)
    said = [format_table(asked, fitted), *(f"note: {note}" for note in fitted.notes)]
    # Both may refuse a confidence band, so they are computed before anything is written or printed.
    predicted = None if asked.predictions is None else predict(asked, fitted, elsewhere)
    figure = None if asked.out is None or len(asked.x) not in DRAWN else draw(asked, fitted)
    try:
        if asked.out is not None:
            said.append(_save(asked, figure))
        if predicted is not None:
            write_predictions(asked, fitted, predicted)
            said += [f"note: {note}" for note in predicted.notes]
            said.append(f"wrote {asked.predictions}, {len(predicted.places)} rows")
    finally:
        print("\n".join(said))
    return fitted


def _save(asked: RegressOptions, figure: Figure | None) -> str:
    out = asked.out
    assert out is not None
    if figure is None:
        return f"no figure: a fit on {len(asked.x)} columns has no picture; predict along one of them with --predict-at"
    try:
        return f"wrote {plots.save_as(figure, out)}"
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{out} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
