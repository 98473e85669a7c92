"""A first walk through the library: the chapter's data, pooled, printed and drawn by one command."""

from regard.tour.walk import Visit, run

__all__ = ["Visit", "run"]
