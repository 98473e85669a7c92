"""`regard tour`: the first walk through the library."""

from pathlib import Path


def tour(*, out: Path = Path("tour")) -> None:
    """Pool the chapter's data, print a small table, draw the figure.

    Args:
        out: folder for the figure (SVG, PNG) and its numbers (CSV).
    """
    from regard.tour import run

    run(out)
