"""What the client knows of each block of the data: a handful of numbers that one pass over it brings back."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.errors import RegardError


class Summary(NamedTuple):
    """One block, or several joined; rows of weight 0 do not count. All numbers in float64.

    rows: how many. weight: their sum. lightest: the smallest weight. low, high: (dim,), the box around the keys.
    key, value: the means (dim,) and (outputs,). spread: (dim,), the mean squared distance of the keys from theirs.
    """

    rows: int
    weight: float
    lightest: float
    low: np.ndarray
    high: np.ndarray
    key: np.ndarray
    value: np.ndarray
    spread: np.ndarray


@np.errstate(over="ignore")  # what becomes infinite is refused, here or by its extent
def summarise(X: Any, y: Any, weight: Any) -> Summary:
    """Check one block and sum it up, as it will be pooled: where X is float32, so are the others."""
    dtype = np.float32 if np.asarray(X).dtype == np.float32 else np.float64
    X, y, weight = (
        np.asarray(part).astype(dtype).astype(np.float64)
        for part in (X, y, np.ones(len(X)) if weight is None else weight)
    )
    y = in_columns(y)
    if not len(X) == len(y) == len(weight):
        raise RegardError(
            "y",
            got=f"a block with {len(X)} rows of X, {len(y)} of y and {len(weight)} weights",
            needed="blocks of the same rows",
            repair="Call .compute_chunk_sizes() on the arrays, so that they can be cut alike.",
        )
    for argument, part in (("X", X), ("y", y), ("sample_weight", weight)):
        if not np.isfinite(part).all():
            raise RegardError(
                argument,
                got="NaN or infinity",
                needed=f"finite numbers of {dtype.__name__}",
                repair="Drop or fill the missing rows first, and divide what is too large.",
            )
    if (weight < 0).any():
        raise RegardError(
            "sample_weight",
            got=f"{weight.min():g}",
            needed="no negative number",
            repair="A weight counts repetitions of its row; 0 leaves the row out.",
        )
    kept = weight > 0
    if not kept.all():
        X, y, weight = X[kept], y[kept], weight[kept]
    if not len(X):
        nothing = np.zeros(X.shape[1])
        return Summary(0, 0.0, np.inf, nothing + np.inf, nothing - np.inf, nothing, np.zeros(y.shape[1]), nothing)
    low, high = X.min(0), X.max(0)
    # Relative to the first row, so that an offset of the data costs no digits.
    key = X[0] + np.average(X - X[0], 0, weight)
    value = y[0] + np.average(y - y[0], 0, weight)
    spread = np.average(np.square(X - key), 0, weight)
    return Summary(len(X), float(weight.sum()), float(weight.min()), low, high, key, value, spread)


def in_columns(y: np.ndarray) -> np.ndarray:
    """y as (rows, outputs); rows may be none."""
    return y if y.ndim == 2 else y[:, np.newaxis]


@np.errstate(over="ignore")
def join(parts: Sequence[Summary]) -> Summary:
    """The summary of all rows of all blocks."""
    rows = sum(part.rows for part in parts)
    if not rows:
        raise RegardError(
            "X",
            got="no row with a positive weight",
            needed="at least one",
            repair="Check how the rows were filtered; a weight counts repetitions of its row.",
        )
    parts = [part for part in parts if part.rows]
    share = np.array([part.weight for part in parts]) / sum(part.weight for part in parts)
    key = _mean(share, [part.key for part in parts])
    within = share @ np.stack([part.spread for part in parts])
    between = share @ np.stack([np.square(part.key - key) for part in parts])
    return Summary(
        rows,
        sum(part.weight for part in parts),
        min(part.lightest for part in parts),
        np.min([part.low for part in parts], 0),
        np.max([part.high for part in parts], 0),
        key,
        _mean(share, [part.value for part in parts]),
        within + between,
    )


def _mean(share: np.ndarray, means: list[np.ndarray]) -> np.ndarray:
    return means[0] + share @ np.stack([mean - means[0] for mean in means])
