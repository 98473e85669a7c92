"""A CSV file as the page sends it: its columns, and two of them as points."""

import csv
import io
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import RegardError
from regard.regression import csv_columns
from regard.studio.asked import Asked
from regard.studio.limits import MOST_BYTES, MOST_POINTS

NAME = "file.csv"
LOOKED_AT = 50  # lines that tell which columns hold numbers


def points(asked: Asked) -> dict[str, Any]:
    """Two columns of a CSV text by name, the first two that hold numbers unless told.

    asked: text; x, y: names of columns, or empty. A text whose first line holds numbers gets the names column 1, 2 ...
    """
    table = _look(asked.text("text", MOST_BYTES))
    chosen = {side: asked.text(side, 200, "") for side in ("x", "y")}
    free = iter(table.numeric)
    for side in ("x", "y"):
        chosen[side] = chosen[side] or next((name for name in free if name not in chosen.values()), "")
    if not chosen["x"] or not chosen["y"]:
        raise RegardError(
            "file",
            got=f"the columns {', '.join(map(repr, table.names))[:200]}",
            needed="two columns of numbers, x and y",
            repair="Check the separator (comma, semicolon, tab or bar) and the decimal point.",
        )
    read = _read(table.text, [("x", chosen["x"]), ("y", chosen["y"])])
    if not 0 < len(read.numbers) <= MOST_POINTS:
        raise RegardError(
            "file",
            got=f"{len(read.numbers):,} rows of numbers",
            needed=f"1 to {MOST_POINTS:,}",
            repair="Take a sample of them; `regard regress` takes larger files.",
        )
    x, y = read.numbers.T.tolist()
    names = {"x_name": chosen["x"], "y_name": chosen["y"]}
    return {"columns": table.names, **names, "x": x, "y": y, "dropped": read.dropped}


class Table(NamedTuple):
    """A CSV text whose first line names its columns, these names, and those of columns that hold numbers."""

    text: str
    names: list[str]
    numeric: list[str]


def _look(text: str) -> Table:
    """What is in a text, by its first lines; one without names gets some."""
    lines = [line for line in io.StringIO(text.lstrip("\ufeff"), newline="") if line.strip()]
    if not lines:
        raise RegardError(
            "file",
            got="an empty file",
            needed="a first line that names the columns, then lines of numbers",
            repair="Check that the file was written to the end.",
        )
    try:
        separator = max(csv_columns.SEPARATORS, key=lambda sign: len(next(csv.reader(lines[:1], delimiter=sign))))
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines[:LOOKED_AT], delimiter=separator)]
    except csv.Error as refusal:
        raise RegardError(
            "file", got=f"{refusal}", needed="lines of cells, separated by commas", repair="Save it as CSV again."
        ) from None
    names, body = rows[0], rows[1:]
    if all(csv_columns.as_number(cell) is not None for cell in names):
        names, body = [f"column {number}" for number in range(1, len(names) + 1)], rows
        lines.insert(0, separator.join(names) + "\n")
    held = {name: [row[place] for row in body if place < len(row)] for place, name in enumerate(names) if name}
    return Table("".join(lines), list(held), [name for name, cells in held.items() if _holds_numbers(cells)])


def _holds_numbers(cells: list[str]) -> bool:
    """Whether the first cell that is not blank is a number."""
    first = next((cell for cell in cells if cell and cell.lower() not in csv_columns.BLANK), "")
    return csv_columns.as_number(first) is not None


def _read(text: str, wanted: list[tuple[str, str]]) -> csv_columns.Columns:
    """By the reader of `regard regress`, which takes a file: the same refusals for the same mistakes."""
    with tempfile.TemporaryDirectory(prefix="regard-studio-") as folder:
        path = Path(folder) / NAME
        path.write_text(text, encoding="utf-8")
        return csv_columns.read_columns("file", path, wanted, drop_missing=True)
