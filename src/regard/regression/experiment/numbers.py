"""The numbers behind the experiment's figures, as CSV files; every number is written so that it reads back exactly."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.regression.experiment.comparison import Comparison, interval
from regard.regression.experiment.norms import Dropped
from regard.regression.experiment.shown import Shown


def write(comparison: Comparison, shown: Shown, dropped: Dropped, out: Path) -> tuple[Path, ...]:
    """Write one file for each table into a folder."""
    return (
        _errors(comparison, out / "errors.csv"),
        _draws(comparison, out / "errors-by-draw.csv"),
        _by_width(comparison, out / "errors-by-width.csv"),
        _write(out / "samples.csv", ["x", "y"], zip(shown.x.tolist(), shown.y.tolist(), strict=True)),
        _fits(shown, out / "fits.csv"),
        _weights(shown, out / "weights.csv"),
        *_norms(dropped, out),
    )


def _errors(comparison: Comparison, path: Path) -> Path:
    rows: list[tuple[object, ...]] = []
    for at, judged in (("1", comparison.at_one), ("loo", comparison.at_own)):
        for kernel, row in judged.items():
            found = interval(row.errors)
            rows.append((kernel, at, float(row.widths.median()), found.mean, found.half, row.filled))
    constant = interval(comparison.constant)
    rows.append(("constant", "", "", constant.mean, constant.half, 0))
    return _write(path, ["kernel", "width", "median width", "mean error", "half of 95% interval", "filled"], rows)


def _draws(comparison: Comparison, path: Path) -> Path:
    tables = (("at 1", comparison.at_one), ("at loo", comparison.at_own))
    columns = {f"{kernel} {at}": row.errors for at, judged in tables for kernel, row in judged.items()}
    columns |= {f"{kernel} width": row.widths for kernel, row in comparison.at_own.items()}
    columns["constant"] = comparison.constant
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return _write(path, ["seed", *columns], ((seed, *row) for seed, row in enumerate(rows)))


def _by_width(comparison: Comparison, path: Path) -> Path:
    rows = [
        (kernel, width, error)
        for kernel, (widths, errors) in comparison.followed.items()
        for width, error in zip(widths.tolist(), errors.tolist(), strict=True)
    ]
    return _write(path, ["kernel", "width", "mean error"], rows)


def _fits(shown: Shown, path: Path) -> Path:
    columns = {"x": shown.places, "truth": shown.truth}
    columns |= {f"{kernel} 1": pooled.curve for kernel, pooled in shown.at_one.items()}
    columns |= {f"{kernel} {pooled.width!r}": pooled.curve for kernel, pooled in shown.at_own.items()}
    columns |= {f"gaussian {width!r}": pooled.curve for width, pooled in shown.by_width.items()}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return _write(path, list(columns), rows)


def _weights(shown: Shown, path: Path) -> Path:
    """A row for each kernel, width and place; a column for each sample."""
    every = [*shown.at_one.values(), *shown.at_own.values(), *shown.by_width.values()]
    rows = (
        (pooled.kernel, pooled.width, place, *weights)
        for pooled in every
        for place, weights in zip(shown.places.tolist(), pooled.weights.tolist(), strict=True)
    )
    return _write(path, ["kernel", "width", "x", *map(repr, shown.x.tolist())], rows)


def _norms(dropped: Dropped, out: Path) -> tuple[Path, Path]:
    spread = {"sd of |k|^2": dropped.spreads, **dropped.by_spread, "bound for eq. 7": dropped.bound}
    dimension = {"D": dropped.dimensions, **dropped.by_dimension}
    paths = (out / "norms-by-spread.csv", out / "norms-by-dimension.csv")
    for path, columns in zip(paths, (spread, dimension), strict=True):
        _write(path, list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))
    return paths


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)  # floats by repr: the shortest text that reads back as the same number
    return path
