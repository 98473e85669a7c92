"""What each score finds under each rule, as bars beside chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS, TRUTH
from regard.translation.lab.expressiveness import Expressiveness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The wider additive score is a lighter one.
SCORE_COLOURS = (COLOURS[0], COLOURS[1], COLOURS[4])


def draw_expressiveness(measured: Expressiveness) -> Figure:
    """A panel for each rule: bars with the range over seeds; the dotted line is chance."""
    found = measured.found()
    rules = list(dict.fromkeys(rule for rule, _ in found))
    figure, panels = plots.canvas(7.2, 1.9, panels=len(rules), same_scales=True)
    with plots.house_style():
        for ax, rule in zip(panels, rules, strict=True):
            rows = {score: cell for (its_rule, score), cell in found.items() if its_rule == rule}
            for height, ((_, interval), colour) in enumerate(zip(rows.values(), SCORE_COLOURS, strict=True)):
                ax.barh(height, 100 * interval.mean, height=0.6, color=colour)
                ax.plot([100 * interval.lowest, 100 * interval.highest], [height] * 2, color=TRUTH, linewidth=1.0)
                ax.text(100 * interval.highest + 2, height, f"{100 * interval.mean:.0f}", va="center", fontsize=8)
            ax.axvline(100 * measured.chance, color=TRUTH, linewidth=0.8, linestyle=":")
            labels = [f"{score}\n{count} parameters" for score, (count, _) in rows.items()]
            ax.set_yticks(range(len(rows)), labels)
            ax.set(title=rule, xlim=(0, 110), ylim=(len(rows) - 0.5, -0.5), xlabel="right key found, %")
            ax.set_xticks(range(0, 101, 20))
    return figure
