"""The numbers behind the tour's figure, as CSV files that anything can read."""

import csv
from collections.abc import Iterable
from pathlib import Path

from regard.tour.fits import Fits


def write(fits: Fits, out: Path) -> tuple[Path, ...]:
    """Write samples.csv, fits.csv (a column per width) and weights.csv (a row per place) into a folder."""
    samples = zip(fits.x.tolist(), fits.y.tolist(), strict=True)
    columns = (fits.places, fits.truth, *fits.by_width.values())
    rows = zip(*(column.tolist() for column in columns), strict=True)
    weights = fits.attended.weights().tolist()
    rows_of_weights = ((place, *row) for place, row in zip(fits.places.tolist(), weights, strict=True))
    return (
        _table(out / "samples.csv", ["x", "y"], samples),
        _table(out / "fits.csv", ["x", "truth", *(f"width {width:g}" for width in fits.by_width)], rows),
        _table(out / "weights.csv", ["query x \\ key x", *(f"{x:.6f}" for x in fits.x.tolist())], rows_of_weights),
    )


def _table(path: Path, header: list[str], rows: Iterable[tuple[float, ...]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([f"{number:.6f}" for number in row] for row in rows)
    return path
