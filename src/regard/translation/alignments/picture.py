"""An alignment as a picture: source words across, target words down, darker for heavier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import RegardError
from regard.plots import check_format, save_as
from regard.plots.heatmaps import heatmap_apart
from regard.translation.alignments.alignment import Alignment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_WORD = "∅"


def draw(alignment: Alignment, path: Path | str) -> Path:
    """Write the picture as .svg, .png or .pdf, as the path ends; return the path.

    Words may be of any script; a font that is missing is warned of by name. In an SVG words stay text.
    """
    check_format(path)
    return save_as(picture(alignment), path)


def picture(alignment: Alignment) -> Figure:
    """The figure, sized to its words: a row for each target word, a column for each source word and one for no word.

    The last column, ∅, is what `unaligned` says: the mass on the end of the sentence. White is 0 and the darkest 1,
    so that pictures compare.
    """
    if not alignment.target_words or not alignment.source_words:
        raise RegardError(
            "alignment",
            got=f"{len(alignment.target_words)} target words and {len(alignment.source_words)} source words",
            needed="at least one of each",
            repair="There is nothing to draw for an empty sentence.",
        )
    figure = heatmap_apart(
        torch.cat((alignment.weights, alignment.unaligned[:, None]), 1),
        queries=alignment.target_words,
        keys=(*alignment.source_words, NO_WORD),
        names=("target", "source"),
        darkest=1.0,
    )
    figure.axes[0].axvline(len(alignment.source_words) - 0.5, color="0.6", linewidth=0.8)
    return figure
