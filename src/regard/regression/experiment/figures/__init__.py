"""The figures of the experiment, each drawn from what was computed."""

from regard.regression.experiment.figures.errors import draw_errors, draw_errors_by_width
from regard.regression.experiment.figures.kernels import draw_kernels
from regard.regression.experiment.figures.norms import draw_norms
from regard.regression.experiment.figures.one_draw import draw_fits, draw_weights, draw_widths

__all__ = [
    "draw_errors",
    "draw_errors_by_width",
    "draw_fits",
    "draw_kernels",
    "draw_norms",
    "draw_weights",
    "draw_widths",
]
