"""Pictures of attention: heatmaps of weights, masks, curves over points and maps, for the screen and for the page."""

from regard.plots.heatmaps import heatmap
from regard.plots.lines import band, curves
from regard.plots.look import canvas, check_format, house_style, make_folder, save, save_as
from regard.plots.maps import height_map
from regard.plots.masks import mask

__all__ = [
    "band",
    "canvas",
    "check_format",
    "curves",
    "heatmap",
    "height_map",
    "house_style",
    "make_folder",
    "mask",
    "save",
    "save_as",
]
