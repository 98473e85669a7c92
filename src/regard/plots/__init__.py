"""Pictures of attention: heatmaps of weights and curves over points, for the screen and for the page."""

from regard.plots.heatmaps import heatmap
from regard.plots.lines import curves
from regard.plots.look import canvas, house_style, save

__all__ = ["canvas", "curves", "heatmap", "house_style", "save"]
