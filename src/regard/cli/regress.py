"""`regard regress`: kernel regression of a file, or the chapter's experiment."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from inspect import signature
from json import dumps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regard.cli.output import check_can_write, spinner
from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.regression.csv_report import RegressionReport, RegressOptions

EXAMPLES = (
    ("regard regress data.csv --x times --y accel --out fit.svg", "fit, choose the width, draw"),
    ("regard regress data.csv --x east --x north --y height --kernel epanechnikov", "two columns, another kernel"),
    ("regard regress data.csv --x times --y accel --grid 200 --predictions curve.csv", "the curve as a table"),
    ("regard regress --demo", "the chapter's experiment"),
)


def regress(
    file: Path | None = None,
    /,
    *,
    x: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    y: str | None = None,
    kernel: str = "gaussian",
    bandwidth: str = "loo",
    degree: int = 0,
    weights: str | None = None,
    level: float = 0.95,
    variance: str = "local",
    empty: str = "nan",
    predict_at: Path | None = None,
    grid: int | None = None,
    predictions: Path | None = None,
    out: Path | None = None,
    drop_missing: Annotated[bool, Parameter(negative=())] = False,
    demo: Annotated[bool, Parameter(negative=())] = False,
    draws: int | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Fit y on x of a CSV file by kernel regression, or run the chapter's experiment with --demo.

    Args:
        file: a CSV file whose first line names the columns.
        x: a column to regress on; give --x once for each.
        y: the column to predict.
        kernel: gaussian, laplacian, boxcar, triangular, epanechnikov, tricube, biweight or cosine_kernel.
        bandwidth: loo, aicc, gcv (chosen from the data), scott, silverman (rules), a number, numbers with commas
            between them (one per x), nearest:20 or nearest:loo (adaptive).
        degree: 0 for local means, 1 for local lines.
        weights: a column that counts repetitions of each row.
        level: of the confidence band, which covers the mean of the estimator, not the true curve.
        variance: local where the noise changes with x, global where it is the same everywhere.
        empty: nan, nearest, mean or raise: the answer where a compact kernel sees no row.
        predict_at: a CSV file with the x columns, whose rows are predicted.
        grid: predict at so many evenly spaced places along each x.
        predictions: CSV file for the predictions; at the rows of the data unless --predict-at or --grid says where.
        out: file for the figure (.svg, .png or .pdf); with --demo, the folder for figures and numbers.
        drop_missing: leave out rows with a blank cell or NaN instead of refusing the file.
        demo: the chapter's experiment: kernels, widths, and the step to the dot product.
        draws: how many draws the experiment averages over, 200 unless said otherwise.
        json: print what was found as JSON; the table for people goes to standard error.
    """
    if demo:
        if file is not None:
            raise _refusal("demo", f"--demo and the file {file}", "one of them", "The experiment makes its own data.")
        if json:
            raise _refusal("json", "--json and --demo", "one of them", "The experiment writes its numbers as CSV.")
        if (given := _beside_the_demo(locals())) is not None:
            needed = "--demo with --draws and --out alone"
            raise _refusal(given, f"--{given} and --demo", needed, "The experiment has its own data and kernels.")
        from regard.regression import experiment

        with spinner("comparing kernels and widths"):
            experiment.run(out or Path("regress-demo"), experiment.DRAWS if draws is None else draws)
        return
    if draws is not None:
        raise _refusal("draws", f"{draws} without --demo", "a file or the experiment", "Add --demo.")
    if file is None or not x or y is None:
        lacking = "no file" if file is None else "no --x" if not x else "no --y"
        example = "regard regress data.csv --x times --y accel --out fit.svg"
        raise _refusal("regress", lacking, "a CSV file, --x and --y, or --demo", f"For example: {example}")
    from regard.regression.csv_report import RegressOptions, run

    check_can_write((file, predict_at), out=out, predictions=predictions)
    options = RegressOptions(
        file=file,
        x=x,
        y=y,
        kernel=kernel,
        bandwidth=bandwidth,
        degree=degree,
        weights=weights,
        level=level,
        variance=variance,
        empty=empty,
        predict_at=predict_at,
        grid=grid,
        predictions=predictions,
        out=out,
        drop_missing=drop_missing,
    )
    with spinner(f"fitting {file}"), redirect_stdout(sys.stderr) if json else nullcontext():
        fitted = run(options)
    if json:
        print(as_json(options, fitted))


def as_json(options: "RegressOptions", fitted: "RegressionReport") -> str:
    """What was found, for a program: one object with a name for each number, null where there is none."""
    model, width = fitted.model, fitted.model.bandwidth_
    found = {
        "file": str(options.file),
        "x": list(options.x),
        "y": options.y,
        "rows": len(fitted.y),
        "rows_left_out": fitted.dropped,
        "kernel": options.kernel,
        "degree": options.degree,
        "bandwidth": width.tolist()
        if hasattr(width, "tolist")
        else {"nearest": width.k}
        if hasattr(width, "k")
        else width,
        "criterion": model.criterion_,
        "degrees_of_freedom": model.effective_degrees_of_freedom_,
        "left_out_error": fitted.left_out_error,
        "rows_alone": fitted.alone,
        "r2": fitted.r2,
        "left_out_r2": fitted.left_out_r2,
        "notes": list(fitted.notes),
    }
    # JSON has neither NaN nor infinities.
    finite = {name: None if isinstance(x, float) and not isfinite(x) else x for name, x in found.items()}
    return dumps(finite, indent=1, ensure_ascii=False, allow_nan=False)


def _beside_the_demo(asked: Mapping[str, object]) -> str | None:
    """The first flag that was given and that the experiment has no use for."""
    for name, flag in signature(regress).parameters.items():
        if name not in ("demo", "draws", "out") and asked[name] != flag.default:
            return name.replace("_", "-")
    return None


def _refusal(argument: str, got: str, needed: str, repair: str) -> RegardError:
    return RegardError(argument, got=got, needed=needed, repair=repair)
