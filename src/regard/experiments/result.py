"""What an experiment found: text, table, figure and files, with Student intervals over seeds."""

from __future__ import annotations

import csv
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from regard import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# 97.5% quantiles of Student's distribution with 1, 2, … degrees of freedom.
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
NORMAL = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Interval:
    """The mean of a number over seeds, half the width of its 95% interval, and the extremes.

    half: None of a single seed, which says nothing about others.

    >>> print(Interval.of([0.97, 0.98, 0.99]))
    0.980 ± 0.025
    """

    mean: float
    half: float | None
    lowest: float
    highest: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Interval:
        """The interval that holds the mean over all seeds in 95 of 100 such experiments, if it is nearly normal."""
        mean, count = math.fsum(numbers) / len(numbers), len(numbers)
        half = None
        if count > 1:
            variance = math.fsum((number - mean) ** 2 for number in numbers) / (count - 1)
            half = quantile(count - 1) * math.sqrt(variance / count)
        return cls(mean, half, min(numbers), max(numbers))

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Such as "98.0 ± 2.5" for digits=1 and scale=100."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.half is None else f"{mean} ± {scale * self.half:.{digits}f}"

    def __str__(self) -> str:
        return self.text(3)


def quantile(degrees: int) -> float:
    """Student's 97.5% quantile; beyond the table by two corrections of the normal one, right to 0.1%."""
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    z, z3, z5 = NORMAL, NORMAL**3, NORMAL**5
    return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees**2)


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
