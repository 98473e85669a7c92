"""Pictures of attention: heatmaps of weights, masks, and curves over points, for the screen and for the page."""

from regard.plots.heatmaps import heatmap
from regard.plots.lines import curves
from regard.plots.look import canvas, house_style, save
from regard.plots.masks import mask

__all__ = ["canvas", "curves", "heatmap", "house_style", "mask", "save"]
