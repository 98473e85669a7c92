"""Figures of one draw: every panel shows its own curve or weights, all on the same scales."""

import numpy as np

from regard.regression.experiment.figures import draw_fits, draw_weights, draw_widths
from regard.regression.experiment.shown import OF_THE_CHAPTER


def heatmaps(figure):
    return [ax.images[0] for ax in figure.axes if ax.images]


def test_a_panel_of_fits_for_every_kernel(experiment):
    shown = experiment.shown
    panels = draw_fits(shown).axes
    assert len(panels) == len(shown.at_own)
    assert len({panel.get_ylim() for panel in panels}) == 1
    for panel, (kernel, own) in zip(panels, shown.at_own.items(), strict=True):
        curves = {line.get_label(): line.get_ydata() for line in panel.lines}
        np.testing.assert_array_equal(curves["width 1"], shown.at_one[kernel].curve)
        np.testing.assert_array_equal(curves["leave-one-out width (in brackets)"], own.curve)
        assert f"({own.width:.2f})" in panel.get_title(loc="left")


def test_weights_of_the_chapters_kernels_share_one_scale(experiment):
    shown = experiment.shown
    images = heatmaps(draw_weights(shown))
    expected = [table[kernel].weights for table in (shown.at_one, shown.at_own) for kernel in OF_THE_CHAPTER]
    assert len({image.get_clim() for image in images}) == 1
    for image, weights in zip(images, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(image.get_array()), weights.numpy())


def test_a_curve_above_its_weights_for_every_width(experiment):
    shown = experiment.shown
    figure = draw_widths(shown)
    above = figure.axes[: len(shown.by_width)]
    assert [panel.get_title(loc="left") for panel in above] == [f"width {width:g}" for width in shown.by_width]
    for panel, image, pooled in zip(above, heatmaps(figure), shown.by_width.values(), strict=True):
        np.testing.assert_array_equal(panel.lines[-1].get_ydata(), pooled.curve)
        np.testing.assert_array_equal(np.asarray(image.get_array()), pooled.weights.numpy())
    assert len({panel.get_ylim() for panel in above}) == 1
