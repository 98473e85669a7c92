"""A bar for each score under each rule, with its number of parameters."""

import pytest

from regard.translation.lab.expressiveness import Expressiveness, Learnt
from regard.translation.lab.figures.expressiveness import draw_expressiveness


def test_bars_are_the_means_over_seeds():
    sizes = {"bilinear": 216, "additive": 216, "additive, 8 x as wide": 1728}
    rows = [
        Learnt(rule, score, count, seed, 0.1 * seed + 0.05 * len(score) / 10)
        for rule in ("bilinear rule", "nearest rule")
        for score, count in sizes.items()
        for seed in (1, 2)
    ]
    found = Expressiveness(tuple(rows), 8, 27, 1 / 16)
    panels = draw_expressiveness(found).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["bilinear rule", "nearest rule"]
    widths = [bar.get_width() for axes in panels for bar in axes.patches]
    assert widths == pytest.approx([100 * interval.mean for _, interval in found.found().values()])
    assert "1728 parameters" in panels[0].get_yticklabels()[2].get_text()
