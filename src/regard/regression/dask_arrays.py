"""Dask blocks: alignment, one summary per block, what a worker computes."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import Attended, inspect, merge
from regard.errors import RegardError
from regard.regression import validation
from regard.regression.sums import Kernel, Observations
from regard.regression.sums import pool as pool_all
from regard.regression.sums.all_pairs import as_score
from regard.scores.kernels import KERNELS


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


def reject_dask(X: Any) -> None:
    """What would collect a Dask array in this process says so instead."""
    if is_dask(X):
        raise RegardError(
            "X",
            got=f"a Dask {type(X).__name__}",
            needed="an array in memory: NadarayaWatson.fit, and predict and log_mass, are what takes Dask arrays",
            repair="Pass X.compute(), or call the method on each block with X.map_blocks.",
        )


def import_dask() -> Any:
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
    """The rows of y or weights in the same blocks as those of X."""
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
def summarize(X: Any, y: Any, weight: Any) -> Summary:
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
def merge_summaries(parts: Sequence[Summary]) -> Summary:
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


# exp(-746) is 0 in float64.
UNSEEN = 746.0
# The boxes are compared in float64, the kernels of float32 data in float32.
BOX_SLACK = 1e-5


# A distance beyond this counts as this, so that no square overflows: however far away, a Gaussian is not empty.
FARTHEST = 1e150


def lower_bound(query: np.ndarray, summaries: Sequence[Summary], kernel: Kernel) -> np.ndarray:
    """(queries,): a log mass that one of the blocks has for certain, minus infinity where none is certain."""
    floor = np.full(len(query), -np.inf)
    for block in summaries:
        if block.rows:
            to_low, to_high = (_in_widths(np.abs(query - edge), kernel) for edge in (block.low, block.high))
            near, far = np.square(np.minimum(to_low, to_high)), np.square(np.maximum(to_low, to_high))
            # Every face of the box has a key on it, which is at most this far away.
            farthest = (far.sum(-1, keepdims=True) - far + near).min(-1) * (1 + BOX_SLACK)
            floor = np.maximum(floor, _log_kernel(farthest, kernel) + np.log(block.lightest))
    return floor


def can_contribute(query: np.ndarray, block: Summary, kernel: Kernel, floor: np.ndarray) -> np.ndarray:
    """(queries,): False where the block adds nothing to what is certain."""
    if not block.rows:
        return np.zeros(len(query), dtype=bool)
    away = _in_widths(np.maximum(np.maximum(block.low - query, query - block.high), 0.0), kernel)
    most = _log_kernel(np.square(away).sum(-1) * (1 - BOX_SLACK), kernel) + np.log(block.weight)
    return (most > -np.inf) & (most >= floor - UNSEEN)


def _in_widths(distance: np.ndarray, kernel: Kernel) -> np.ndarray:
    width = np.asarray(kernel.width, dtype=np.float64)
    return np.minimum(distance, FARTHEST * width) / width


def _log_kernel(z: np.ndarray, kernel: Kernel) -> np.ndarray:
    return KERNELS[kernel.name].log_of_ratio(torch.from_numpy(z)).numpy()


# Below this a log mass is too large a number to hold the ratio of two masses to 1e-12.
FAR = -1024.0
# Scores that exist at once for rows so far away: 2^20 float64 numbers are 8 MiB.
SCORES_AT_ONCE = 2**20


class Part(NamedTuple):
    """Queries pooled over some of the keys.

    mean: (queries, outputs), 0 where no key is in the window. log_mass: (queries,) float64, minus infinity there, less
    peak. peak: (queries,) float64, the best score where the mass is so small that its logarithm would hide the digits
    that compare it with another part's; 0 elsewhere.
    """

    mean: np.ndarray
    log_mass: np.ndarray
    peak: np.ndarray

    @classmethod
    def empty(cls, queries: int, outputs: int, dtype: np.dtype) -> "Part":
        """No key in any window."""
        return cls(np.zeros((queries, outputs), dtype), np.full(queries, -np.inf), np.zeros(queries))


class QueryBlock(NamedTuple):
    """Queries (queries, dim), and the log mass (queries,) that each of them is certain to find somewhere."""

    query: np.ndarray
    floor: np.ndarray


class Block(NamedTuple):
    """One block of the data: X (rows, dim), y (rows,) or (rows, outputs), weight (rows,) or None.

    without: positions among the rows of positive weight that are left out, or None.
    """

    X: Any
    y: Any
    weight: Any
    without: np.ndarray | None = None


def load_block(block: Block, dtype: np.dtype) -> Observations:
    """A block as tensors, without the rows of weight 0 and those that it leaves out."""
    key, value = (validation.as_tensor(np.asarray(part, dtype=dtype)) for part in (block.X, in_columns(block.y)))
    weight = None if block.weight is None else validation.as_tensor(np.asarray(block.weight, dtype=dtype))
    data = Observations(key, value, weight)
    if weight is not None and not bool((weight > 0).all()):
        data = _rows(data, weight > 0)
    if block.without is not None:
        stay = torch.ones(len(data.key), dtype=torch.bool)
        stay[torch.tensor(block.without)] = False
        data = _rows(data, stay)
    return data


def take_rows(block: Block, rows: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Some rows of a block, by their positions: key, value and weight."""
    data = _rows(load_block(block, dtype), torch.tensor(rows))
    weight = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    return data.key.numpy(), data.value.numpy(), weight.numpy()


def pool_block(asked: QueryBlock, block: Block, summary: Summary, kernel: Kernel, tolerance: float | None) -> Part:
    """Pool the queries over one block; those that it cannot matter to see nothing there."""
    query = asked.query
    part = Part.empty(len(query), len(summary.value), query.dtype)
    rows = np.flatnonzero(can_contribute(query, summary, kernel, asked.floor))
    if not len(rows):
        return part
    data = load_block(block, query.dtype)
    if not len(data.key):
        return part
    point = validation.as_tensor(query[rows])
    pooled = pool_all(point, data, kernel, tolerance=tolerance)
    part.mean[rows], part.log_mass[rows] = pooled.mean.numpy(), pooled.log_mass.numpy()
    far = rows[(part.log_mass[rows] < FAR) & (part.log_mass[rows] > -np.inf) & (asked.floor[rows] < FAR)]
    height = max(SCORES_AT_ONCE // len(data.key), 1)
    for start in range(0, len(far), height):
        _look_closely(part, far[start : start + height], query, data, kernel)
    return part


def prepare_queries(query: Any, summaries: Sequence[Summary], kernel: Kernel, dtype: np.dtype) -> QueryBlock:
    """Check a block of queries, and see what is certain for them."""
    query = np.asarray(query, dtype=dtype)
    if not np.isfinite(query).all():
        raise RegardError(
            "X", got="NaN or infinity", needed="finite numbers", repair="Drop or fill the missing rows first."
        )
    return QueryBlock(query, lower_bound(query, summaries, kernel))


def merge_parts(parts: list[Part]) -> Part:
    """The exact union of pools of the same queries over disjoint keys (`regard.merge`)."""
    masses = np.stack([part.peak + part.log_mass for part in parts])
    peaks = np.stack([part.peak for part in parts])
    peak = np.take_along_axis(peaks, masses.argmax(0)[np.newaxis], 0)[0]
    joined = merge(
        [Attended(torch.tensor(part.mean), torch.tensor((part.peak - peak) + part.log_mass)) for part in parts]
    )
    return Part(joined.output.numpy(), joined.log_mass.numpy(), peak)


def _rows(data: Observations, rows: Tensor) -> Observations:
    return Observations(data.key[rows], data.value[rows], None if data.weight is None else data.weight[rows])


def _look_closely(part: Part, rows: np.ndarray, queries: np.ndarray, data: Observations, kernel: Kernel) -> None:
    """Write rows of a part again, relative to the best score of each.

    Weights are pooled as values are: added to a score of -1e12, the logarithm of a weight would be lost.
    """
    query, key, value = torch.tensor(queries[rows]).double(), data.key.double(), data.value.double()
    weight = torch.ones_like(key[:, :1]) if data.weight is None else data.weight.double().unsqueeze(-1)
    score = as_score(kernel)
    peak = inspect(query, key, value, score=score).scores().amax(-1)
    record = inspect(query, key, torch.cat([weight * value, weight], -1), score=score, bias=-peak.unsqueeze(-1))
    mass = record.output[:, -1]
    part.mean[rows] = (record.output[:, :-1] / mass.unsqueeze(-1)).numpy()
    part.log_mass[rows] = (record.log_mass + mass.log()).numpy()
    part.peak[rows] = peak.numpy()
