"""The page: fragments, formulas, style and script put together into one file that asks nobody for anything."""

from regard.tour.page.assembling import assemble

__all__ = ["assemble"]
