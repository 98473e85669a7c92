"""Parameters, speed and memory side by side, a bar for each model or score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS
from regard.translation.lab.costs import MEGA, Costs
from regard.translation.lab.score_costs import ScoreCosts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_costs(costs: Costs) -> Figure:
    """Of whole models in training."""
    return _bars(
        [str(cost.competitor) for cost in costs.models],
        {
            "1,000 parameters": [cost.parameters / 1000 for cost in costs.models],
            "1,000 target tokens/s": [cost.speed / 1000 for cost in costs.models],
            "MiB an update": [cost.bytes / MEGA for cost in costs.models],
        },
    )


def draw_score_costs(costs: ScoreCosts) -> Figure:
    """Of attention alone."""
    return _bars(
        [str(cost.competitor) for cost in costs.scores],
        {
            "1,000 parameters": [cost.parameters / 1000 for cost in costs.scores],
            "1,000 queries/s": [cost.speed / 1000 for cost in costs.scores],
            "MiB": [cost.bytes / MEGA for cost in costs.scores],
        },
    )


def _bars(names: Sequence[str], panels: dict[str, list[float]]) -> Figure:
    figure, axes = plots.canvas(7.2, 0.9 + 0.24 * len(names), panels=len(panels))
    with plots.house_style():
        for ax, (title, numbers), colour in zip(axes, panels.items(), COLOURS, strict=False):
            bars = ax.barh(range(len(names)), numbers, height=0.62, color=colour)
            ax.bar_label(bars, [_short(number) for number in numbers], padding=3, fontsize=7)
            ax.set(title=title, xlim=(0, 1.22 * max(numbers)), ylim=(len(names) - 0.5, -0.5))
            ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names))
            ax.tick_params(axis="y", length=0)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
    return figure


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"
