"""What every experiment of the laboratory gives: a text, a table, a figure, and their files."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from regard import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Table(NamedTuple):
    """Numbers in full, as a CSV file has them; None is an empty cell."""

    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


class Finding(ABC):
    """The result of one experiment; `str` of it is what a terminal shows.

    name: of its files.
    """

    name: ClassVar[str]

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def table(self) -> Table:
        """Every number of the figure."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured, as JSON has it."""

    @abstractmethod
    def draw(self) -> Figure:
        """The figure, in the house's look."""

    def save(self, out: Path) -> tuple[Path, ...]:
        """Write name.csv, name.json, name.svg and name.png into a folder that exists."""
        spreadsheet, page = out / f"{self.name}.csv", out / f"{self.name}.json"
        table = self.table()
        with spreadsheet.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table.header)
            writer.writerows(table.rows)
        page.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return spreadsheet, page, *plots.save(self.draw(), out / self.name)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines with the first cells to the left and all others to the right, each column as wide as it needs.

    >>> print(columns([("score", "exact"), ("dot", "99.1")]))
      score  exact
      dot     99.1
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in rows
    ]
    return "\n".join(f"  {line}".rstrip() for line in lines)
