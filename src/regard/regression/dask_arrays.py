"""Dask blocks: how they are aligned, what is known of each, and what a worker computes from one.

The data stay in their blocks. Every block is pooled by its own task, on the worker that holds or makes it; tasks return
one mean and one mass for each query, which are merged exactly, a few at a time, on workers (`regard.merge`). The client
keeps the graph, a summary of each block, and the answers. The scheduler is Dask's own: a `distributed.Client` where one
is active, threads of this process otherwise. Dask starts its worker processes with one thread each for torch; with
threads of this process, call `torch.set_num_threads(1)` before.
"""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import Attended, merge
from regard.errors import RegardError
from regard.regression import validation
from regard.regression.sums import Observations, PoolTask, pool
from regard.scores.kernels import KERNELS


class Blocks(NamedTuple):
    """The observations as lazy blocks of rows.

    Attributes:
        X: blocks (rows, dim).
        y: blocks (rows,) or (rows, outputs).
        weight: blocks (rows,), or None for each.
        dtype: in which they are pooled: float32 as it is, everything else as float64.
        dim: columns of X.
        one_output: whether y has one axis.
    """

    X: list[Any]
    y: list[Any]
    weight: list[Any]
    dtype: np.dtype
    dim: int
    one_output: bool

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.X)

    def at(self, index: int) -> tuple[Any, Any, Any]:
        """Return X, y and weight of one block."""
        return self.X[index], self.y[index], self.weight[index]


def import_dask() -> Any:
    """Return the module `dask` with its arrays loaded."""
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
    """Return the blocks of a fit. Nothing is computed: columns of X are joined, and y is cut as X is, lazily.

    Blocks of unknown length (of a filter or a dataframe) are paired in their order; `summarize` compares lengths.
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
    """Return X with one block of columns; its number of columns must be known."""
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
    """Return the dtype in which X is pooled."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def _array(argument: str, given: Any, ndim: tuple[int, ...]) -> Any:
    dask = import_dask()
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
    """Return y or weights cut into the same blocks of rows as X."""
    ours, theirs = X.chunks[0], part.chunks[0]
    if not np.isnan(ours).any() and not np.isnan(theirs).any():
        if sum(ours) == sum(theirs):
            return part.rechunk({0: ours})
    elif len(ours) == len(theirs):
        return part
    raise RegardError(
        argument,
        got=f"{_describe_rows(theirs)} for X with {_describe_rows(ours)}",
        needed="one row for each row of X",
        repair="Where lengths are unknown, call .compute_chunk_sizes() on both arrays first.",
    )


def _describe_rows(chunks: tuple[float, ...]) -> str:
    total = sum(chunks)
    return f"{len(chunks)} blocks of unknown length" if math.isnan(total) else f"{int(total)} rows"


class Summary(NamedTuple):
    """A handful of numbers about one block, or several merged, in float64; rows of weight 0 do not count.

    Attributes:
        rows: the number of rows.
        weight: the sum of their weights.
        lightest: the smallest weight.
        low: (dim,), the lower corner of the box around the keys.
        high: (dim,), the upper corner.
        key: (dim,), the mean of the keys.
        value: (outputs,), the mean of the values.
        variance: (dim,), the variance of the keys.
    """

    rows: int
    weight: float
    lightest: float
    low: np.ndarray
    high: np.ndarray
    key: np.ndarray
    value: np.ndarray
    variance: np.ndarray


@np.errstate(over="ignore")  # what becomes infinite is refused, here or by its extent
def summarize(X: Any, y: Any, weight: Any) -> Summary:
    """Check and summarize one block as it will be pooled: where X is float32, y and weight are too."""
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
    variance = np.average(np.square(X - key), 0, weight)
    return Summary(len(X), float(weight.sum()), float(weight.min()), low, high, key, value, variance)


def in_columns(y: np.ndarray) -> np.ndarray:
    """Return y as (rows, outputs), also if there are no rows."""
    return y if y.ndim == 2 else y[:, np.newaxis]


@np.errstate(over="ignore")
def merge_summaries(parts: Sequence[Summary]) -> Summary:
    """Return the summary of all rows of all blocks."""
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
    within = share @ np.stack([part.variance for part in parts])
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


# --- Which queries a block can contribute to --------------------------------------------------------------------

# Where data are in some order (by time, by place), most blocks hold nothing for most queries: a compact window does not
# reach them, and a Gaussian's mass there is below the smallest float64 times what nearer blocks hold at least. What is
# left out does not change a digit of the result.

# exp(-746) is 0 in float64.
MAX_EXPONENT = 746.0
# The boxes are compared in float64, the kernels of float32 data in float32.
BOX_SLACK = 1e-5
# Larger distances count as this many widths, so that no square overflows: however far away, a Gaussian is not empty.
MAX_DISTANCE = 1e150


def lower_bound(query: np.ndarray, summaries: Sequence[Summary], kernel: str, width: Any) -> np.ndarray:
    """Return a log mass that each query has at least, minus infinity where none is certain; (queries,)."""
    found = np.full(len(query), -np.inf)
    for block in summaries:
        if block.rows:
            to_low, to_high = (_in_widths(np.abs(query - edge), width) for edge in (block.low, block.high))
            near, far = np.square(np.minimum(to_low, to_high)), np.square(np.maximum(to_low, to_high))
            # Every face of the box has a key on it, which is at most this far away.
            farthest = (far.sum(-1, keepdims=True) - far + near).min(-1) * (1 + BOX_SLACK)
            found = np.maximum(found, _log_kernel(farthest, kernel) + np.log(block.lightest))
    return found


def can_contribute(queries: "QueryBlock", block: Summary, kernel: str, width: Any) -> np.ndarray:
    """Return whether the block may add to the certain log mass of each query, (queries,)."""
    query = queries.query
    if not block.rows:
        return np.zeros(len(query), dtype=bool)
    away = _in_widths(np.maximum(np.maximum(block.low - query, query - block.high), 0.0), width)
    most = _log_kernel(np.square(away).sum(-1) * (1 - BOX_SLACK), kernel) + np.log(block.weight)
    return (most > -np.inf) & (most >= queries.min_log_mass - MAX_EXPONENT)


def _in_widths(distance: np.ndarray, width: Any) -> np.ndarray:
    width = np.asarray(width, dtype=np.float64)
    return np.minimum(distance, MAX_DISTANCE * width) / width


def _log_kernel(z: np.ndarray, kernel: str) -> np.ndarray:
    return KERNELS[kernel].log_of_ratio(torch.from_numpy(z)).numpy()


# --- What a worker computes -------------------------------------------------------------------------------------

# Everything that travels is NumPy: its size is known to Dask, which decides by it what to keep in memory.


class PartialPool(NamedTuple):
    """Queries pooled over some of the keys.

    Attributes:
        mean: (queries, outputs), 0 where no key is in the window.
        log_mass: (queries,), minus infinity there.
    """

    mean: np.ndarray
    log_mass: np.ndarray

    @classmethod
    def empty(cls, queries: int, outputs: int, dtype: np.dtype) -> "PartialPool":
        """Return the pool over no key."""
        return cls(np.zeros((queries, outputs), dtype), np.full(queries, -np.inf))


class QueryBlock(NamedTuple):
    """Queries (queries, dim), and the log mass (queries,) that each of them has at least."""

    query: np.ndarray
    min_log_mass: np.ndarray


class Block(NamedTuple):
    """One block of the data.

    Attributes:
        X: (rows, dim).
        y: (rows,) or (rows, outputs).
        weight: (rows,) or None.
        without: positions among the rows of positive weight that are left out, or None.
    """

    X: Any
    y: Any
    weight: Any
    without: np.ndarray | None = None


def load_block(block: Block, dtype: np.dtype) -> Observations:
    """Return a block as tensors, without the rows of weight 0 and those that it leaves out."""
    key, value = (validation.as_tensor(np.asarray(part, dtype=dtype)) for part in (block.X, in_columns(block.y)))
    weight = None if block.weight is None else validation.as_tensor(np.asarray(block.weight, dtype=dtype))
    data = Observations(key, value, weight)
    if weight is not None and not bool((weight > 0).all()):
        data = data.take(weight > 0)
    if block.without is not None:
        stay = torch.ones(len(data.key), dtype=torch.bool, device="cpu")
        stay[torch.tensor(block.without, device="cpu")] = False
        data = data.take(stay)
    return data


def take_rows(block: Block, rows: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Return key, value and weight of some rows of a block, by their positions."""
    data = load_block(block, dtype).take(torch.tensor(rows, device="cpu"))
    weight = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    return data.key.numpy(), data.value.numpy(), weight.numpy()


def prepare_queries(query: Any, summaries: Sequence[Summary], kernel: str, width: Any, dtype: np.dtype) -> QueryBlock:
    """Check a block of queries, and bound their log mass."""
    query = np.asarray(query, dtype=dtype)
    if not np.isfinite(query).all():
        raise RegardError(
            "X", got="NaN or infinity", needed="finite numbers", repair="Drop or fill the missing rows first."
        )
    return QueryBlock(query, lower_bound(query, summaries, kernel, width))


def pool_block(
    queries: QueryBlock, block: Block, summary: Summary, kernel: str, width: Any, tolerance: float | None
) -> PartialPool:
    """Pool the queries over one block; skip queries that the block cannot contribute to."""
    query = queries.query
    part = PartialPool.empty(len(query), len(summary.value), query.dtype)
    rows = np.flatnonzero(can_contribute(queries, summary, kernel, width))
    if not len(rows):
        return part
    data = load_block(block, query.dtype)
    if len(data.key):
        task = PoolTask(validation.as_tensor(query[rows]), data, KERNELS[kernel], width, tolerance=tolerance)
        pooled = pool(task)
        part.mean[rows], part.log_mass[rows] = pooled.mean.numpy(), pooled.log_mass.numpy()
    return part


def merge_pools(parts: list[PartialPool]) -> PartialPool:
    """Return the exact union of pools of the same queries over disjoint keys."""
    merged = merge(
        [Attended(torch.tensor(one.mean, device="cpu"), torch.tensor(one.log_mass, device="cpu")) for one in parts]
    )
    return PartialPool(merged.output.numpy(), merged.log_mass.numpy())
