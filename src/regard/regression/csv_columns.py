"""Columns of numbers of a CSV file, and an error for everything that can be wrong with one."""

import csv
import difflib
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from regard.errors import RegardError

SEPARATORS = ",;\t|"
MOST_LINES_NAMED = 5
# What spreadsheets and R write for a number that is not there.
BLANK = ("na", "n/a", "null", "none")
MAX_LINE = 2**20  # characters
# Of a pipe or a device, which may never end. A file may have any size: only the chosen columns are kept.
MAX_STREAM = 2**26  # characters


class Columns(NamedTuple):
    """numbers: (rows, columns), float64. dropped: how many lines were left out since a number was missing."""

    numbers: np.ndarray
    dropped: int


def read_columns(
    argument: str, path: Path, wanted: Sequence[tuple[str, str]], *, drop_missing: bool = False
) -> Columns:
    """Read columns by name.

    argument: what an error of the file is about. wanted: (argument, column) pairs, what one of a column is about.

    The first line names the columns. Separators may be commas, semicolons, tabs or bars; blank lines do not count.
    """
    _check_different(wanted)
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = _lines(argument, path, file)
            blank, header = _first(lines)
            reader = csv.reader(chain([header], lines), delimiter=_separator(header), strict=True)
            names = next(([name.strip() for name in row] for row in reader if _has_content(row)), [])
            if not any(name.strip(f'{SEPARATORS}"') for name in names):
                raise _empty(argument, path)
            chosen = {column: _place(asker, column, names) for asker, column in wanted}
            rows = ((blank + reader.line_num, row) for row in reader if _has_content(row))
            return _numbers(path.name, argument, len(names), rows, chosen, drop_missing)
    except (OSError, UnicodeDecodeError) as refusal:
        reason = refusal.strerror if isinstance(refusal, OSError) else "not UTF-8 text"
        raise RegardError(
            argument, got=f"{path} ({reason})", needed="a CSV file in UTF-8", repair="Check the path and the file."
        ) from None
    except csv.Error as refusal:
        raise RegardError(
            argument,
            got=f"{path.name}: {refusal}",
            needed="lines of cells, quotes closed where they are opened",
            repair="Save it as CSV again.",
        ) from None


def as_number(text: str) -> float | None:
    """The number that a cell holds, or None; digits are not grouped by underscores, as they are in Python."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _check_different(wanted: Sequence[tuple[str, str]]) -> None:
    names = [column for _, column in wanted]
    for place, (asker, column) in enumerate(wanted):
        if column in names[:place]:
            raise RegardError(
                asker,
                got=f"{column!r} a second time",
                needed="a column of its own for each",
                repair="Choose another column.",
            )


def _lines(argument: str, path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file one by one, so that neither an endless line nor an endless file fills the memory."""
    most = math.inf if path.is_file() else MAX_STREAM
    seen = 0
    while line := file.readline(MAX_LINE + 1):
        seen += len(line)
        if len(line) > MAX_LINE or seen > most:
            is_line = len(line) > MAX_LINE
            raise RegardError(
                argument,
                got=f"{path}, {'with a line' if is_line else 'which is no regular file,'} of more than "
                f"{MAX_LINE if is_line else MAX_STREAM:,} characters",
                needed=f"lines of at most {MAX_LINE:,} characters; of a pipe or device at most {MAX_STREAM:,} in all",
                repair="Check that it is a CSV file." if is_line else "Save it as a file first.",
            )
        yield line


def _first(lines: Iterator[str]) -> tuple[int, str]:
    """How many blank lines come first, and the line after them; nothing if there is none."""
    blank = 0
    for line in lines:
        if line.strip():
            return blank, line
        blank += 1
    return blank, ""


def _has_content(row: list[str]) -> bool:
    return any(cell.strip() for cell in row)


def _empty(argument: str, path: Path) -> RegardError:
    return RegardError(
        argument,
        got=f"{path.name}, which is empty",
        needed="a first line that names the columns, then lines of numbers",
        repair="Check that the file was written to the end.",
    )


def _separator(header: str) -> str:
    """The separator that splits the header into most cells, quotes respected; of a single column, the comma."""
    return max(SEPARATORS, key=lambda separator: len(next(csv.reader([header], delimiter=separator), [])))


def _place(argument: str, column: str, header: list[str]) -> int:
    found = [index for index, name in enumerate(header) if name == column]
    if len(found) == 1:
        return found[0]
    named = ", ".join(repr(name) for name in header if name)
    if found:
        raise RegardError(
            argument,
            got=f"{column!r}, which {len(found)} columns are called",
            needed=f"a column that is there once, of {named}",
            repair="Rename one of them.",
        )
    near = difflib.get_close_matches(column.lower(), [name.lower() for name in header], n=1)
    meant = next((name for name in header if near and name.lower() == near[0]), None)
    nameless = all(as_number(name) is not None for name in header)
    repair = "The first line must name the columns." if nameless else "Names count as they are written."
    raise RegardError(
        argument,
        got=repr(column),
        needed=f"one of the columns {named}",
        repair=f"Did you mean {meant!r}?" if meant else repair,
    )


def _numbers(
    file: str,
    argument: str,
    width: int,
    rows: Iterable[tuple[int, list[str]]],
    chosen: dict[str, int],
    drop: bool,
) -> Columns:
    """The chosen cells of every row; width: how many cells a row must have; rows: with their line numbers."""
    found, missing, count = array("d"), array("q"), 0
    for line, row in rows:
        count += 1
        if len(row) != width:
            raise RegardError(
                argument,
                got=f"{len(row)} cells in line {line} of {file}",
                needed=f"{width}, as in the first line",
                repair="Quote a cell that holds a separator.",
            )
        numbers = [
            _cell(argument, row[place], f"line {line} of {file}, column {name!r}") for name, place in chosen.items()
        ]
        if all(math.isfinite(number) for number in numbers):
            found.extend(numbers)
        else:
            missing.append(line)
    if missing and not drop:
        shown = ", ".join(map(str, missing[:MOST_LINES_NAMED])) + (", ..." if len(missing) > MOST_LINES_NAMED else "")
        columns = " or ".join(map(repr, chosen))
        raise RegardError(
            argument,
            got=f"{len(missing)} of {count} rows of {file} with a blank, NaN or infinite cell in {columns}: "
            f"line{'s' if len(missing) > 1 else ''} {shown}",
            needed="a finite number in every row",
            repair="Fill them in, or pass --drop-missing to leave these rows out.",
        )
    return Columns(np.array(found, dtype=np.float64).reshape(-1, len(chosen)), len(missing))


def _cell(argument: str, text: str, where: str) -> float:
    if not text.strip() or text.strip().lower() in BLANK:
        return math.nan
    number = as_number(text)
    if number is None:
        comma = as_number(text.replace(",", ".", 1)) is not None
        raise RegardError(
            argument,
            got=f"{text.strip()!r:.40} in {where}",
            needed="numbers",
            repair="Write a decimal point, not a comma." if comma else "Choose a column of numbers, or mend the cell.",
        )
    return number
