"""Where a fit is asked: at the rows of the data, on a grid over them, or at the rows of another file."""

import numpy as np

from regard.errors import RegardError
from regard.regression.report.columns import read
from regard.regression.report.wishes import Wishes


def elsewhere(wishes: Wishes) -> np.ndarray | None:
    """(places, dim): the rows of the other file, where one was named."""
    if wishes.predict_at is None:
        return None
    wanted = [("x", name) for name in wishes.x]
    found = read("predict_at", wishes.predict_at, wanted, drop_missing=wishes.drop_missing).numbers
    if not len(found):
        raise RegardError(
            "predict_at",
            got=f"no row of numbers in {wishes.predict_at.name}",
            needed="at least one place to predict at",
            repair="Check that the file was written to the end.",
        )
    return found


def grid_over(x: np.ndarray, count: int) -> np.ndarray:
    """(places, dim): every combination of `count` evenly spaced values along each column."""
    axes = axes_over(x, count)
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def axes_over(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Evenly spaced values over the range of each column."""
    return [np.linspace(column.min(), column.max(), count) for column in x.T]
