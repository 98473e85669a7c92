"""What a user asks for on the command line, and its words turned into the estimator's."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import RegardError
from regard.regression.report.columns import as_number

CHOICES = ("loo", "aicc", "gcv", "scott", "silverman")
CRITERIA = ("loo", "aicc", "gcv")
MAX_PLACES = 10**7
MAX_DIGITS = 18  # of k in nearest:k; every such number fits into int64


@dataclass(frozen=True)
class Wishes:
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

    if text in CHOICES:
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
            needed=f"a positive number{several}, {', '.join(CHOICES)}, or nearest:20",
            repair="Pass --bandwidth loo to have it chosen from the data.",
        )
    return numbers[0] if len(numbers) == 1 else np.array(numbers)


def check(wishes: Wishes) -> None:
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
