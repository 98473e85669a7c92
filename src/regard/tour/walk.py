"""The walk itself: pool the data, say what came out, leave the figure and its numbers behind."""

from dataclasses import dataclass
from pathlib import Path

from regard import plots
from regard.tour.figure import draw
from regard.tour.fits import Fits, fit
from regard.tour.numbers import write
from regard.tour.report import tell


@dataclass(frozen=True)
class Visit:
    """What a walk leaves behind: what it computed, and the files it wrote."""

    fits: Fits
    files: tuple[Path, ...]


def run(out: Path) -> Visit:
    """Print a small table; write the figure (SVG, PNG) and its numbers (CSV) into the folder `out`."""
    plots.make_folder(out)
    fits = fit()
    print(tell(fits))
    files = (*plots.save(draw(fits), out / "tour"), *write(fits, out))
    print("\n".join(f"wrote {file}" for file in files))
    return Visit(fits, files)
