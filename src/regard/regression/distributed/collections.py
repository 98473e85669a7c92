"""Which Dask collections are taken as X, y and sample_weight, and how their blocks are made to agree."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from typing import Any, NamedTuple

import numpy as np

from regard.errors import RegardError


class Blocks(NamedTuple):
    """The observations as lazy blocks of rows: block i is X[i] (rows, dim), y[i], weight[i] (rows,) or None.

    dtype: in which they are pooled: float32 as it is, everything else as float64. dim: columns of X.
    one_output: whether y has one axis.
    """

    X: list[Any]
    y: list[Any]
    weight: list[Any]
    dtype: np.dtype
    dim: int
    one_output: bool

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self.X)

    def at(self, index: int) -> tuple[Any, Any, Any]:
        """One block: X, y, weight."""
        return self.X[index], self.y[index], self.weight[index]


def is_dask(X: Any) -> bool:
    """Whether X is a Dask collection of any kind; Dask is not imported to find out."""
    return hasattr(type(X), "__dask_graph__")


def refuse_dask(X: Any) -> None:
    """What would collect a Dask array in this process says so instead."""
    if is_dask(X):
        raise RegardError(
            "X",
            got=f"a Dask {type(X).__name__}",
            needed="an array in memory: NadarayaWatson.fit, and predict and log_mass, are what takes Dask arrays",
            repair="Pass X.compute(), or call the method on each block with X.map_blocks.",
        )


def dask_of_extra() -> Any:
    """The module `dask` with its arrays loaded."""
    try:
        import dask
        import dask.array
    except ImportError as missing:
        raise RegardError(
            "X",
            got="a model or an array of Dask without Dask",
            needed="the packages of the extra `distributed`",
            repair='Install them: pip install "regard[distributed]".',
        ) from missing
    return dask


def align(X: Any, y: Any, sample_weight: Any) -> Blocks:
    """The blocks of a fit. Nothing is computed: columns of X are joined, and y is cut as X is, lazily.

    Blocks of unknown length (a filter, a dataframe) are paired in their order; `tasks.summarise` compares lengths.
    """
    X = whole_rows("X", X)
    y = _array("y", y, ndim=(1, 2))
    parts = [X, y if y.ndim == 1 else y.rechunk({1: -1})]
    if sample_weight is not None:
        parts.append(_array("sample_weight", sample_weight, ndim=(1,)))
    names = ("X", "y", "sample_weight")
    parts[1:] = [_cut_as(X, part, name) for part, name in zip(parts[1:], names[1:], strict=False)]
    # Optimised one by one, X and y would each read what they have in common (a file, a table).
    blocks = [part.to_delayed(optimize_graph=False).ravel().tolist() for part in parts]
    weight = blocks[2] if len(blocks) > 2 else [None] * len(blocks[0])
    return Blocks(blocks[0], blocks[1], weight, dtype_of(X), X.shape[1], y.ndim == 1)


def whole_rows(argument: str, X: Any) -> Any:
    """X with one block of columns; its number of columns must be known."""
    X = _array(argument, X, ndim=(2,))
    if math.isnan(X.shape[1]) or X.shape[1] == 0:
        raise RegardError(
            argument,
            got=f"shape {X.shape}",
            needed="a known number of columns, at least one",
            repair="Call X.compute_chunk_sizes() first.",
        )
    return X.rechunk({1: -1})


def dtype_of(X: Any) -> np.dtype:
    """The dtype in which X is pooled."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def _array(argument: str, given: Any, ndim: tuple[int, ...]) -> Any:
    dask = dask_of_extra()
    if not isinstance(given, dask.array.Array):
        raise RegardError(
            argument,
            got=type(given).__name__,
            needed="a dask.array.Array, as X is",
            repair="Of a dataframe pass .to_dask_array(lengths=True); of an array in memory "
            "dask.array.from_array(array, chunks=X.chunks[0]).",
        )
    if given.ndim not in ndim or given.dtype.kind not in "fiub":
        raise RegardError(
            argument,
            got=f"{given.ndim} axes of {given.dtype}",
            needed=f"real numbers with {' or '.join(map(str, ndim))} axes",
            repair="Reshape one feature with X.reshape(-1, 1); cast objects with .astype(float).",
        )
    return given


def _cut_as(X: Any, part: Any, argument: str) -> Any:
    """The rows of y or weights in the same blocks as those of X."""
    ours, theirs = X.chunks[0], part.chunks[0]
    if not np.isnan(ours).any() and not np.isnan(theirs).any():
        if sum(ours) == sum(theirs):
            return part.rechunk({0: ours})
    elif len(ours) == len(theirs):
        return part
    raise RegardError(
        argument,
        got=f"{_rows(theirs)} for X with {_rows(ours)}",
        needed="one row for each row of X",
        repair="Where lengths are unknown, call .compute_chunk_sizes() on both arrays first.",
    )


def _rows(chunks: tuple[float, ...]) -> str:
    total = sum(chunks)
    return f"{len(chunks)} blocks of unknown length" if math.isnan(total) else f"{int(total)} rows"
