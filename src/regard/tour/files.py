"""The files behind the page: a CSV for every table, an SVG and a PNG for every figure."""

import csv
import io
from pathlib import Path

from regard import plots
from regard.tour.station import Station, Table


def write(station: Station, out: Path) -> list[Path]:
    """Write a station's tables and figures into a folder that exists."""
    written = []
    for table in station.tables:
        path = out / f"{table.name}.csv"
        path.write_text(as_csv(table), encoding="utf-8", newline="")
        written.append(path)
    for name, figure in station.figures.items():
        written += plots.save(figure, out / name)
    return written


def as_csv(table: Table) -> str:
    """The text of the file; floats by repr, the shortest text that reads back as the same number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(table.rows)
    return text.getvalue()
