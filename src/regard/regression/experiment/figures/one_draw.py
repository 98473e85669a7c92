"""Curves and weights of the shown draw: by kernel, and by the width of the Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from regard import plots
from regard.regression.experiment.names import title
from regard.regression.experiment.shown import OF_THE_CHAPTER, Pooled, Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHOLE = (0, 1, 2, 3, 4)


def draw_fits(shown: Shown) -> Figure:
    """A panel for each kernel: its curve at width 1, and at its own leave-one-out width."""
    figure, panels = plots.canvas(7.2, 4.4, panels=4, rows=2, same_scales=True)
    with plots.house_style():
        for ax, (kernel, own) in zip(panels, shown.at_own.items(), strict=True):
            curves = {"width 1": shown.at_one[kernel].curve, "leave-one-out width (in brackets)": own.curve}
            plots.curves(shown.places, curves, truth=shown.truth, points=(shown.x, shown.y), ax=ax)
            ax.set(title=f"{title(kernel)} ({own.width:.2f})", xticks=WHOLE)
        _name_outer(panels, 4, "x", "y")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_weights(shown: Shown) -> Figure:
    """Weights of the chapter's kernels: above at width 1, below at their leave-one-out widths; one colour scale."""
    chosen = [table[kernel] for table in (shown.at_one, shown.at_own) for kernel in OF_THE_CHAPTER]
    figure, panels = plots.canvas(7.2, 4.0, panels=4, rows=2)
    with plots.house_style():
        _heatmaps(shown, chosen, panels)
        for ax, pooled in zip(panels, chosen, strict=True):
            ax.set_title(f"{title(pooled.kernel)} ({pooled.width:.2g})")
        _name_outer(panels, 4, "key: x of a sample", "query: x")
        _bar(figure, panels)
    return figure


def draw_widths(shown: Shown) -> Figure:
    """The Gaussian at several widths: above the curves, below the weights that made them; one colour scale."""
    chosen = list(shown.by_width.values())
    figure, panels = plots.canvas(7.2, 4.2, panels=len(chosen), rows=2)
    above, below = panels[: len(chosen)], panels[len(chosen) :]
    with plots.house_style():
        for ax, pooled in zip(above, chosen, strict=True):
            plots.curves(shown.places, {"fit": pooled.curve}, truth=shown.truth, points=(shown.x, shown.y), ax=ax)
            ax.set(title=f"width {pooled.width:g}", xticks=WHOLE, ylim=_limits(shown.y))
            ax.tick_params(labelleft=ax is above[0])
            ax.set_xlabel("x")
        above[0].set_ylabel("y")
        _heatmaps(shown, chosen, below)
        _name_outer(below, len(chosen), "key: x of a sample", "query: x")
        _bar(figure, below)
        figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _heatmaps(shown: Shown, chosen: Sequence[Pooled], panels: Sequence[Axes]) -> None:
    darkest = max(float(pooled.weights.max()) for pooled in chosen)
    for ax, pooled in zip(panels, chosen, strict=True):
        plots.heatmap(pooled.weights, darkest=darkest, bar=False, ax=ax)
        # Samples are not evenly spaced in x, so neither are their ticks.
        ax.set_xticks([_index(shown.x, x) for x in WHOLE], [str(x) for x in WHOLE])
        ax.set_yticks([_index(shown.places, x) for x in WHOLE], [str(x) for x in WHOLE])
        ax.invert_yaxis()


def _name_outer(panels: Sequence[Axes], columns: int, below: str, beside: str) -> None:
    """Name the axes at the left and lower edge only: the panels share them."""
    for index, ax in enumerate(panels):
        outer_left, outer_below = index % columns == 0, index >= len(panels) - columns
        ax.set(xlabel=below if outer_below else "", ylabel=beside if outer_left else "")
        ax.tick_params(labelleft=outer_left, labelbottom=outer_below)


def _bar(figure: Figure, panels: Sequence[Axes]) -> None:
    scale = figure.colorbar(panels[0].images[0], ax=list(panels), label="weight", fraction=0.03, pad=0.02)
    scale.outline.set_visible(False)


def _limits(y: Tensor) -> tuple[float, float]:
    return float(y.min()) - 0.5, float(y.max()) + 0.5


def _index(ordered: Tensor, x: float) -> int:
    return int((ordered - x).abs().argmin())
