"""Pictures of attention: weights as heatmaps, lines and grids of heads; masks, kernels, fits, maps and trainings."""

from regard.plots.files import check_format, make_folder, save, save_as
from regard.plots.fonts import MissingFontWarning
from regard.plots.heads import heads
from regard.plots.heatmaps import heatmap
from regard.plots.kernels import kernels
from regard.plots.lines import band, curves, fit
from regard.plots.links import links
from regard.plots.look import canvas, house_style
from regard.plots.maps import height_map
from regard.plots.masks import mask
from regard.plots.training import training

__all__ = [
    "MissingFontWarning",
    "band",
    "canvas",
    "check_format",
    "curves",
    "fit",
    "heads",
    "heatmap",
    "height_map",
    "house_style",
    "kernels",
    "links",
    "make_folder",
    "mask",
    "save",
    "save_as",
    "training",
]
