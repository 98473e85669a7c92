"""Both scores in all three panels, over every dimension."""

from regard.translation.lab.figures.saturation import draw_saturation
from regard.translation.lab.saturation import measure_saturation


def test_every_panel_has_both_scores():
    found = measure_saturation((2, 8), draws=1)
    panels = draw_saturation(found).axes
    assert len(panels) == 3
    for axes in panels:
        drawn = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
        assert drawn == {"dot": [2, 8], "scaled dot": [2, 8]}
    assert list(panels[0].lines[0].get_ydata()) == [row.entropy for row in found.of("dot")]
