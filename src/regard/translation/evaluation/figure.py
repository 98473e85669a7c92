"""The picture of an evaluation: quality over the length of the source (arXiv 1409.0473, figure 2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import RegardError
from regard.plots import canvas, curves, house_style, save_as
from regard.translation.evaluation.evaluation import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_by_length(comparison: Comparison) -> Figure:
    """BLEU and exact share of every system by source length; under each length, how many sentences it has."""
    figure, (bleu, exact) = canvas(7.2, 2.9, panels=2)
    lengths = comparison.evaluations[0].by_length
    places = list(range(len(lengths)))
    with house_style():
        curves(places, {one.system: [group.bleu for group in one.by_length] for one in comparison.evaluations}, ax=bleu)
        shares = {one.system: [100 * group.exact for group in one.by_length] for one in comparison.evaluations}
        curves(places, shares, ax=exact)
        for axes, name in ((bleu, "BLEU"), (exact, "exact, %")):
            for line in axes.lines:
                line.set(marker="o", markersize=3.5)
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            axes.set_xticks(places, [f"{group.name}\n{group.count}" for group in lengths])
            axes.tick_params(axis="x", labelsize=6.5 if len(lengths) > 8 else 8)
            axes.set_xlabel(f"source, in {comparison.evaluations[0].length_unit}; sentences below")
        if len(comparison.evaluations) > 1:
            bleu.legend(loc="lower left")
    return figure


def save_figure(comparison: Comparison, path: Path) -> Path:
    """Draw and write; the ending chooses the format."""
    try:
        return save_as(draw_by_length(comparison), path)
    except OSError as refusal:
        raise RegardError(
            "figure",
            got=f"{path} ({refusal.strerror})",
            needed="a file that can be written",
            repair="Choose another path.",
        ) from None
