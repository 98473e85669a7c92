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
    """The arguments of `regard regress`.

    Attributes:
        file: the CSV file.
        x: names of columns to regress on.
        y: name of the column to predict.
        kernel, degree, empty: as in `NadarayaWatson`.
        bandwidth: as text, see `bandwidth_of`.
        weights: name of a column, or None.
        level, variance: of the confidence band.
        predict_at: a file with the columns x, or None.
        grid: positions along each x, or None.
        predictions: the file for predictions, or None.
        out: the file for the figure, or None.
        drop_missing: whether to leave out rows with a missing number.
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
        """Every column with the argument that names it: x first, then y, then weights."""
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


def check_options(options: RegressOptions) -> None:
    """Refuse what can be seen to be wrong before any file is read."""
    if options.grid is not None and (options.grid < 2 or options.predict_at is not None):
        raise RegardError(
            "grid",
            got=f"{options.grid}{' and --predict-at' if options.predict_at is not None else ''}",
            needed="at least 2 places along each x, and no other places beside them",
            repair="Pass --grid 200, or --predict-at with a file.",
        )
    if options.grid is not None and (options.grid > MAX_PLACES or options.grid ** len(options.x) > MAX_PLACES):
        count = f"{options.grid:,}" if options.grid <= sys.maxsize else f"a number of {len(str(options.grid))} digits"
        raise RegardError(
            "grid",
            got=f"{count} places along each of {len(options.x)} columns",
            needed=f"at most {MAX_PLACES:,} places in all",
            repair="Pass a smaller --grid, or --predict-at with a file.",
        )
    if options.predictions is None and (options.predict_at is not None or options.grid is not None):
        raise RegardError(
            "predictions",
            got="no file, but places to predict at",
            needed="a file to write them into",
            repair="Add --predictions out.csv.",
        )
    bandwidth_of(options.bandwidth, len(options.x))
    if not 0 < options.level < 1:
        raise RegardError(
            "level", got=f"{options.level:g}", needed="a number between 0 and 1", repair="Pass --level 0.95."
        )
    if options.variance not in ("local", "global"):
        raise RegardError(
            "variance",
            got=f"{options.variance!r:.60}",
            needed="local or global",
            repair="Pass --variance global where the noise is the same everywhere.",
        )
    for argument, path in (("out", options.out), ("predictions", options.predictions)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise RegardError(
                argument,
                got=f"{path} ({'it is a folder' if path.is_dir() else f'there is no folder {path.parent}'})",
                needed="a file in a folder that is there",
                repair="Choose another path, or make the folder.",
            )


def read_queries(options: RegressOptions) -> np.ndarray | None:
    """(places, dim): the rows of the other file, where one was named."""
    if options.predict_at is None:
        return None
    wanted = [("x", name) for name in options.x]
    found = read_columns("predict_at", options.predict_at, wanted, drop_missing=options.drop_missing).numbers
    if not len(found):
        raise RegardError(
            "predict_at",
            got=f"no row of numbers in {options.predict_at.name}",
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
    """The fit of a file, with all that is reported about it.

    Attributes:
        model: the fitted NadarayaWatson.
        x: (rows, dim).
        y: (rows,).
        dropped: the number of lines left out.
        notes: the warnings of the fit.
        left_out_error: the mean squared error of predicting each row from the others.
        alone: the number of rows without any other in their window.
        r2: the share of the variance of y that is explained.
        left_out_r2: the same where each row is predicted from the others.
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


def fit_file(options: RegressOptions) -> RegressionReport:
    """Read the columns, check that they can be regressed, and fit."""
    columns = read_columns("file", options.file, options.wanted, drop_missing=options.drop_missing)
    dim = len(options.x)
    x, y = columns.numbers[:, :dim], columns.numbers[:, dim]
    weight = columns.numbers[:, dim + 1] if options.weights is not None else None
    _check(options, x, weight)
    estimator = _estimator()
    model = estimator(options.kernel, bandwidth_of(options.bandwidth, dim), degree=options.degree, empty=options.empty)
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


def _check(options: RegressOptions, x: np.ndarray, weight: np.ndarray | None) -> None:
    if len(x) < 2:
        raise RegardError(
            "file",
            got=f"{len(x)} row{'' if len(x) == 1 else 's'} of numbers in {options.file.name}",
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
    for name, column in zip(options.x, counted.T, strict=True):
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


def format_table(options: RegressOptions, report: RegressionReport) -> str:
    """One line for each thing that a reader asks of a regression."""
    model = report.model
    rows = f"{len(report.y)}"
    if report.dropped:
        rows += f", and {report.dropped} left out since a number was missing"
    lines = [
        ("regression", f"{options.y} on {', '.join(options.x)}, local {'lines' if options.degree else 'means'}"),
        ("rows", rows),
        ("kernel", options.kernel),
        ("bandwidth", _width(model.bandwidth_)),
        ("criterion", _criterion(options, report)),
        ("effective degrees of freedom", f"{model.effective_degrees_of_freedom_:.2f}"),
        ("AICc", f"{model.aicc_:.5g}"),
        ("leave-one-out error", f"{report.left_out_error:.6g} (mean squared)"),
        ("R²", f"{report.r2:.4f} of the rows themselves, {report.left_out_r2:.4f} left out one by one"),
        ("rows alone in their window", f"{report.alone}"),
    ]
    return "\n".join(f"{name:<30}{finding}" for name, finding in lines)


def _width(width: object) -> str:
    """As a reader wants it: six digits, per dimension, or the number of neighbours."""
    if isinstance(width, float | np.ndarray):
        return ", ".join(f"{number:.6g}" for number in np.atleast_1d(width).tolist())
    return f"to the nearest {getattr(width, 'k', width)} rows, at each place anew"


def _criterion(options: RegressOptions, report: RegressionReport) -> str:
    if report.model.criterion_ is None:
        return f"none: the bandwidth was {'a rule' if options.bandwidth.isalpha() else 'given'}"
    return f"{options.bandwidth.rpartition(':')[2]}, {report.model.criterion_:.6g} at this bandwidth"


class Predictions(NamedTuple):
    """places: (places, dim). answers: mean, lower, upper, standard error, log mass, each (places,). notes: warnings."""

    places: np.ndarray
    answers: tuple[np.ndarray, ...]
    notes: tuple[str, ...]


def predict(options: RegressOptions, report: RegressionReport, elsewhere: np.ndarray | None) -> Predictions:
    """Predict at the places of another file, on a grid, or at the rows of the data.

    elsewhere: (places, dim), or None.
    """
    if elsewhere is not None:
        places = elsewhere
    else:
        places = report.x if options.grid is None else grid_over(report.x, options.grid)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        band = report.model.confidence_band(places, options.level, options.variance)
        log_mass = report.model.log_mass(places)
    return Predictions(places, (*band, log_mass), tuple(str(warning.message) for warning in caught))


def write_predictions(options: RegressOptions, report: RegressionReport, predicted: Predictions) -> None:
    """Write the file; at the rows of the data it holds the observations too."""
    assert options.predictions is not None
    observed = options.predict_at is None and options.grid is None
    header = [*options.x, *([options.y] if observed else []), *_names(options)]
    columns = [*predicted.places.T, *([report.y] if observed else []), *predicted.answers]
    try:
        with options.predictions.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            # Python's floats write the shortest text that reads back as the same number.
            writer.writerows(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
    except OSError as refusal:
        raise RegardError(
            "predictions",
            got=f"{options.predictions} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None


def _names(options: RegressOptions) -> list[str]:
    share = f"{100 * options.level:g}%"
    return [f"predicted {options.y}", f"lower {share}", f"upper {share}", "standard error", "log mass"]


PLACES = 401
PLACES_OF_MAP = 81
# More points than this make the file heavy and the picture no clearer.
MOST_POINTS = 2000


def draw(options: RegressOptions, report: RegressionReport) -> Figure:
    """A figure of one panel, for one or two columns x."""
    figure, (ax,) = plots.canvas(5.6, 3.9)
    shown = _sample(len(report.y))
    with plots.house_style(), warnings.catch_warnings(action="ignore"):  # a gap in the curve speaks for itself
        (_curve if report.x.shape[1] == 1 else _map)(options, report, shown, ax)
        ax.set_title(f"{options.kernel.removesuffix('_kernel')} kernel, {_title_width(options, report)}")
        if len(shown) < len(report.y):
            note = f"{len(shown)} of {len(report.y)} samples are drawn"
            ax.annotate(note, (1, 1.02), xycoords="axes fraction", ha="right", fontsize=8)
    return figure


def _curve(options: RegressOptions, report: RegressionReport, shown: np.ndarray, ax: Axes) -> None:
    (places,) = axes_over(report.x, PLACES)
    found = report.model.confidence_band(places[:, None], options.level, options.variance)
    plots.curves(places, {"fit": found.mean}, points=(report.x[shown, 0], report.y[shown]), ax=ax)
    label = f"{100 * options.level:g}% band of the estimator's mean,\nnot of the true curve"
    plots.band(places, found.lower, found.upper, label=label, ax=ax)
    ax.set(xlabel=options.x[0], ylabel=options.y)
    set_as_words(ax.xaxis.label, ax.yaxis.label)
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _map(options: RegressOptions, report: RegressionReport, shown: np.ndarray, ax: Axes) -> None:
    across, up = axes_over(report.x, PLACES_OF_MAP)
    table = np.stack(np.meshgrid(across, up), -1)
    heights = report.model.predict(table.reshape(-1, 2)).reshape(table.shape[:2])
    points = (*report.x[shown].T, report.y[shown])
    plots.height_map(across, up, heights, points=points, label=f"{options.y}: map fitted, dots observed", ax=ax)
    ax.set(xlabel=options.x[0], ylabel=options.x[1])
    set_as_words(ax.xaxis.label, ax.yaxis.label)


def _title_width(options: RegressOptions, report: RegressionReport) -> str:
    width = report.model.bandwidth_
    if not isinstance(width, float | np.ndarray):
        return f"nearest {width.k} rows"
    numbers = " and ".join(f"{number:.3g}" for number in np.atleast_1d(width).tolist())
    chosen = f" by {options.bandwidth}" if options.bandwidth.isalpha() else ""
    return f"bandwidth {numbers}{chosen}"


def _sample(rows: int) -> np.ndarray:
    """Which rows are drawn: all, or as many as a figure can show, the same ones every time."""
    if rows <= MOST_POINTS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, MOST_POINTS, replace=False))


DRAWN = (1, 2)


def run(options: RegressOptions) -> RegressionReport:
    """Fit a file, write the files of the options, print the table; refusals come before anything is written.

    Files are written before the table is printed: a closed pipe must not lose them.
    """
    check_options(options)
    if options.out is not None:
        plots.check_format(options.out)
    elsewhere = read_queries(options)
    report = fit_file(options)
    said = [format_table(options, report), *(f"note: {note}" for note in report.notes)]
    # Both may refuse a confidence band, so they are computed before anything is written or printed.
    predicted = None if options.predictions is None else predict(options, report, elsewhere)
    figure = None if options.out is None or len(options.x) not in DRAWN else draw(options, report)
    try:
        if options.out is not None:
            said.append(_save(options, figure))
        if predicted is not None:
            write_predictions(options, report, predicted)
            said += [f"note: {note}" for note in predicted.notes]
            said.append(f"wrote {options.predictions}, {len(predicted.places)} rows")
    finally:
        print("\n".join(said))
    return report


def _save(options: RegressOptions, figure: Figure | None) -> str:
    out = options.out
    assert out is not None
    if figure is None:
        return (
            f"no figure: a fit on {len(options.x)} columns has no picture; predict along one of them with --predict-at"
        )
    try:
        return f"wrote {plots.save_as(figure, out)}"
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{out} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
