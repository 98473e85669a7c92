"""Where a figure is kept, and how one sees what it was drawn from: a digest of its numbers is in the file."""

import hashlib
import json
import re
from pathlib import Path

from matplotlib.figure import Figure

from regard.plots.look import house_style

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def kept(name: str) -> dict:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def digest(numbers: object) -> str:
    """A short name of the numbers."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def save(figure: Figure, name: str, numbers: object) -> None:
    """Text stays text, and the same numbers give the same file."""
    FIGURES.mkdir(exist_ok=True)
    with house_style(dark=False):
        metadata = {"Date": None, "Creator": None, "Description": f"drawn from {digest(numbers)}"}
        figure.savefig(FIGURES / f"{name}.svg", metadata=metadata)


def drawn_from(name: str) -> str:
    """The digest of the numbers that a kept figure was drawn from."""
    (found,) = re.findall(r"drawn from (\w+)", (FIGURES / f"{name}.svg").read_text(encoding="utf-8"))
    return found
