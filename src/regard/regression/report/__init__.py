"""Kernel regression of a file: its columns read, fitted, told as a table, drawn, and predicted into another file."""

from regard.regression.report.procedure import Wishes, run

__all__ = ["Wishes", "run"]
