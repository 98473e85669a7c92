"""An alignment as a picture: source words across, target words down, darker for heavier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import RegardError
from regard.plots import canvas, check_format, heatmap, house_style, save_as
from regard.plots.fonts import families_for
from regard.translation.alignments.alignment import Alignment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_WORD = "∅"
BLANK = "␣"
LONGEST_LABEL = 24
POINTS = 8.0
# Inches: a cell, the colour bar, the numbers beside it, the name of an axis, and the edge of the page.
CELL, BAR, NUMBERS, NAME, EDGE = 0.24, 0.12, 0.5, 0.25, 0.1
# All cells together, at most: a sentence of hundreds of words gets smaller ones, and smaller type.
LARGEST = 20.0
# A colour bar that is lower has no room for its numbers, and a name no room beside fewer cells.
LOWEST_BAR, LOWEST_NAME = 0.7, 0.45


def draw(alignment: Alignment, path: Path | str) -> Path:
    """Write the picture as .svg, .png or .pdf, as the path ends; return the path.

    Words may be of any script. What no installed font can write is a box with a sign of its script; in an SVG words
    stay text.
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
    across, down = [*map(_label, alignment.source_words), NO_WORD], [*map(_label, alignment.target_words)]
    scale = min(1.0, LARGEST / (CELL * max(len(across), len(down))))
    figure, (axes,) = canvas(1, 1)
    with house_style():
        heatmap(torch.cat((alignment.weights, alignment.unaligned[:, None]), 1), darkest=1.0, bar=False, ax=axes)
        _put_words(axes, across, down, POINTS * scale)
        _rule(axes, len(across), len(down))
        _fit(figure, axes, CELL * scale * len(across), CELL * scale * len(down))
    return figure


def _fit(figure: Figure, axes: Axes, width: float, height: float) -> None:
    """Give the cells width x height inches, and the figure what they and their words take, as measured."""
    beside = max(label.get_window_extent().width for label in axes.get_yticklabels()) / figure.dpi
    above = max(label.get_window_extent().height for label in axes.get_xticklabels()) / figure.dpi
    left, top = EDGE + NAME + beside, EDGE + NAME + above
    right, bottom = EDGE, EDGE + max(0.0, LOWEST_NAME - height) / 2
    if height >= LOWEST_BAR:
        right += 2 * BAR + NUMBERS
        place = axes.inset_axes((1 + BAR / width, 0.0, BAR / width, 1.0))
        bar = figure.colorbar(axes.images[0], cax=place, label="weight", ticks=(0, 0.5, 1))
        bar.outline.set_visible(False)
    page = (left + width + right, bottom + height + top)
    figure.set_layout_engine("none")
    figure.set_size_inches(page)
    axes.set_position((left / page[0], bottom / page[1], width / page[0], height / page[1]))


def _put_words(axes: Axes, across: Sequence[str], down: Sequence[str], points: float) -> None:
    type_of_words = {"fontfamily": families_for([*across, *down]), "fontsize": points}
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    upright = max(map(len, across)) <= 2  # characters need no turning
    axes.set_xticks(range(len(across)), across, rotation=0 if upright else 90, **type_of_words)
    axes.set_yticks(range(len(down)), down, **type_of_words)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)


def _rule(axes: Axes, columns: int, rows: int) -> None:
    """Hair lines between cells, so that a column can be followed to its word; a gap before ∅."""
    axes.spines[:].set_visible(False)
    lines = {"color": "0.9", "linewidth": 0.5}
    axes.vlines([column - 0.5 for column in range(columns + 1)], -0.5, rows - 0.5, **lines)
    axes.hlines([row - 0.5 for row in range(rows + 1)], -0.5, columns - 0.5, **lines)
    axes.vlines(columns - 1.5, -0.5, rows - 0.5, color="0.6", linewidth=0.8)


def _label(word: str) -> str:
    """A word as it stands at an axis: a dollar sign is no formula, and one endless word does not fill the page."""
    if not word.strip():
        return BLANK
    short = word if len(word) <= LONGEST_LABEL else f"{word[: LONGEST_LABEL - 1]}…"
    return short.replace("$", r"\$")
