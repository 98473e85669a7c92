"""The tour: the whole chapter computed by one command, and shown on one page that a reader can touch."""

from regard.tour.budget import FULL, QUICK, Budget
from regard.tour.walk import Visit, run

__all__ = ["FULL", "QUICK", "Budget", "Visit", "run"]
