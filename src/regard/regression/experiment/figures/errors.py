"""The errors of the kernels over all draws: with their intervals, and against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS, POINTS, TRUTH
from regard.regression.bandwidth_search import canonical_ratio
from regard.regression.experiment.comparison import Comparison, Interval, interval
from regard.regression.experiment.names import title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Eight kernels, six colours: the last two come again, dashed.
STYLES = [(colour, "-") for colour in COLOURS] + [(colour, "--") for colour in COLOURS]


def draw_errors(comparison: Comparison) -> Figure:
    """A row for each kernel, mean error and 95% interval: left at width 1, right at its leave-one-out width."""
    count = len(comparison.constant)
    figure, panels = plots.canvas(7.2, 2.9, panels=2, same_scales=True)
    constant = ("constant (mean of y)", interval(comparison.constant))
    with plots.house_style():
        for ax, judged, colour, heading in zip(
            panels,
            (comparison.at_one, comparison.at_own),
            COLOURS,
            ("every kernel at width 1", "each at its leave-one-out width"),
            strict=False,
        ):
            rows: list[tuple[str, Interval]] = [(title(name), interval(row.errors)) for name, row in judged.items()]
            for height, (_, found) in enumerate([*rows, constant]):
                shade = POINTS if height == len(rows) else colour
                ax.errorbar(found.mean, height, xerr=found.half, fmt="o", color=shade, markersize=4, capsize=2.5)
            ax.set_yticks(range(len(rows) + 1), [name for name, _ in [*rows, constant]])
            ax.set(title=heading, xscale="log", xlabel=f"mean squared error, 95% interval, {count} draws")
            ax.grid(axis="x", which="both", color="0.92", linewidth=0.5)
            ax.set_axisbelow(True)
        panels[0].invert_yaxis()
        panels[0].set_xlim(0.05, 2)
        panels[0].set_xticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
    return figure


def draw_errors_by_width(comparison: Comparison) -> Figure:
    """Left: error against the width in the kernel's formula. Right: the same widths as the Gaussian's they equal."""
    figure, panels = plots.canvas(7.2, 3.1, panels=2, same_scales=True)
    left, right = panels
    with plots.house_style():
        for (kernel, (widths, errors)), (colour, dashes) in zip(comparison.followed.items(), STYLES, strict=False):
            style = {"color": colour, "linestyle": dashes, "linewidth": 1.3}
            left.plot(widths, errors, label=title(kernel), **style)
            right.plot(widths / canonical_ratio(kernel), errors, **style)
        left.axvline(1.0, color=TRUTH, linewidth=0.6, linestyle=":")
        left.set(title="width in the kernel's own formula", xlabel="width")
        right.set(title="width in units of equal smoothing", xlabel="width of the Gaussian that smooths as much")
        for ax in panels:
            ax.set(xscale="log", yscale="log", xlim=(0.04, 5), ylim=(0.05, 1.3))
            ax.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
            ax.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
            ax.minorticks_off()
        left.set_ylabel(f"mean squared error, {len(comparison.constant)} draws")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=8, columnspacing=1.0)
    return figure
