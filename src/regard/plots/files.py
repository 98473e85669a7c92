"""The files that figures are saved as: vector for the page, raster for the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import RegardError
from regard.plots.look import house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RASTER_DPI = 200
FORMATS = (".svg", ".png", ".pdf")


class UnwritableError(RegardError, OSError):
    """A file that the system refuses to write; an OSError too, for callers whose argument has another name."""


def save(figure: Figure, stem: Path | str) -> tuple[Path, Path]:
    """Write `stem`.svg for the page and `stem`.png for the screen; return both paths. The stem may have an ending."""
    stem = Path(stem)
    if stem.is_dir():
        raise RegardError(
            "stem",
            got=f"{stem}, a folder",
            needed="the path of a file, without its ending",
            repair=f"Name the figure, for example {stem / 'figure'}.",
        )
    stem = stem.with_suffix("") if stem.suffix.lower() in (".svg", ".png") else stem
    vector, raster = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    return save_as(figure, vector), save_as(figure, raster)


def save_as(figure: Figure, path: Path | str) -> Path:
    """Write one file, in the format that its ending names."""
    check_format(path)
    path = Path(path)
    # A date would make every run a new file.
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    page = figure.get_facecolor()
    try:
        with house_style():
            figure.savefig(path, metadata=undated.get(path.suffix.lower()), dpi=RASTER_DPI, facecolor=page)
    except OSError as refusal:
        said = UnwritableError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path, or make its folder by regard.plots.make_folder.",
        )
        said.strerror = refusal.strerror
        raise said from None
    return path


def make_folder(out: Path | str) -> None:
    """Make the folder that figures and their numbers go into, unless it is there."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{out} ({refusal.strerror})",
            needed="a folder, or a path where one can be made",
            repair="Choose another path.",
        ) from None


def check_format(path: Path | str) -> None:
    """Refuse a file whose ending names no format that figures are saved in."""
    if Path(path).suffix.lower() not in FORMATS:
        raise RegardError(
            "out",
            got=f"{Path(path).name!r}",
            needed=f"a file name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            repair="The ending chooses the format of the figure.",
        )
