"""The fitted curve over Dask blocks: fit, bandwidth, lazy answers.

Up to DRAWN_ROWS rows, leave-one-out collects the rows and searches in this process, as for arrays in memory. Beyond,
that many rows are drawn with a fixed seed, and each of them is predicted from all other rows: the criterion is the mean
squared error of these predictions. One bandwidth costs one pass over the data. A row must not see itself, so the rows
drawn are pooled here, among themselves, and every block is pooled without those that came from it.
"""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from regard.errors import RegardError
from regard.regression import bandwidth, bandwidth_search, dask_arrays, empty_windows
from regard.regression.bandwidth import BandwidthOptions
from regard.regression.bandwidth_search import CriterionEvaluator, SelectedBandwidth
from regard.regression.dask_arrays import (
    Block,
    Blocks,
    PartialPool,
    QueryBlock,
    Summary,
    can_contribute,
    import_dask,
    merge_summaries,
)
from regard.regression.smoother import Fit, Nearest, Smoother
from regard.regression.sums import Observations, Pool
from regard.regression.validation import check_extent
from regard.scores.kernels import KERNELS

DRAWN_ROWS = 2**15
# Pools merged by one task: each holds a few numbers for every query of a block.
MERGED_PER_TASK = 8
# Numbers that go to the workers with one graph: 2^20 float64 are 8 MiB; Dask warns beyond 10.
NUMBERS_SENT = 2**20
# Queries that are pooled together: while they are, each block of the data is needed once and can be forgotten.
QUERIES_PER_BLOCK = 2**17


@dataclass(frozen=True)
class DaskSmoother:
    """Nadaraya-Watson smoothing (eq. 4) of data in blocks; what `Smoother` is for data in this process.

    Attributes:
        blocks: the lazy blocks.
        summaries: one for each block.
        kernel: the name of the kernel.
        width: one number, or one per dimension (dim,).
        degree: 0.
        tolerance: as in `PoolTask`.
        without: for each block the positions that are left out of it, among its rows of positive weight; or None.
    """

    blocks: Blocks
    summaries: tuple[Summary, ...]
    kernel: str
    width: float | Tensor
    degree: int = 0
    tolerance: float | None = None
    without: tuple[np.ndarray, ...] | None = None

    @property
    def data(self) -> NoReturn:
        """Refuse: what needs all observations at once cannot be computed from blocks."""
        raise RegardError(
            "X",
            got="a model fitted on Dask arrays",
            needed="observations in memory, for anything but predict, log_mass and pool",
            repair="Fit a model on a sample in memory with the same bandwidth: NadarayaWatson(bandwidth="
            "model.bandwidth_).fit(X[rows].compute(), y[rows].compute()).",
        )

    @property
    def reference(self) -> Tensor:
        """An empty tensor of the dtype in which queries are computed."""
        return torch.from_numpy(np.empty((0, self.blocks.dim), self.blocks.dtype))

    @property
    def outputs(self) -> int:
        """The number of columns of y."""
        return len(self.summaries[0].value)

    def scale(self, query: Tensor) -> Tensor:
        """Return the query in the coordinates of the keys: as it is."""
        return query

    def width_for(self, query: Tensor) -> float | Tensor:
        """Return the bandwidth, which is the same for all queries."""
        del query
        return self.width

    def pool(self, query: Tensor) -> Pool:
        """Return the kernel sums of each query (queries, dim); the workers compute them now."""
        some = max(NUMBERS_SENT // (query.shape[1] + 1), 1)
        blocks = [block.numpy() for block in query.split(some)]
        parts = [self.pool_block(self.prepare(block)) for block in blocks]
        log_mass = np.concatenate([part.log_mass for part in parts])
        mean = np.concatenate([part.mean for part in parts])
        return Pool(torch.from_numpy(mean), torch.from_numpy(log_mass).to(query.dtype))

    def fit(self, query: Tensor) -> Fit:
        """Return the estimate at each query."""
        pooled = self.pool(query)
        return Fit(pooled.mean, pooled.log_mass, (-pooled.log_mass).exp())

    def prepare(self, query: np.ndarray) -> QueryBlock:
        """Check a block of queries, and bound their log mass."""
        return dask_arrays.prepare_queries(query, self.summaries, self.kernel, self.width, query.dtype)

    def pool_block(self, queries: QueryBlock) -> PartialPool:
        """Pool one block of queries over all blocks that can contribute; the workers compute it now."""
        needed = [
            index
            for index, summary in enumerate(self.summaries)
            if can_contribute(queries, summary, self.kernel, self.width).any()
        ]
        if not needed:
            return PartialPool.empty(len(queries.query), self.outputs, queries.query.dtype)
        (part,) = import_dask().compute(self.lazy_pool(queries, needed))
        return part

    def lazy_pool(self, queries: Any, blocks: Sequence[int]) -> Any:
        """Return the lazy pool of a block of queries, lazy or not, over these blocks of the data."""
        delayed = import_dask().delayed
        queries, pool = delayed(queries), delayed(dask_arrays.pool_block)
        return merge_tree(
            [
                pool(queries, self.block(index), self.summaries[index], self.kernel, self.width, self.tolerance)
                for index in blocks
            ]
        )

    def block(self, index: int) -> Block:
        """Return one lazy block."""
        return Block(*self.blocks.at(index), None if self.without is None else self.without[index])

    def total_weight(self) -> float:
        """Return the number of observations, repetitions counted."""
        return merge_summaries(self.summaries).weight

    def overall_mean(self) -> Tensor:
        """Return the mean of all values, (outputs,)."""
        return torch.tensor(merge_summaries(self.summaries).value, device="cpu").to(self.reference.dtype)


def merge_tree(parts: list[Any]) -> Any:
    """Merge lazy pools, a few at a time, until one is left."""
    merge = import_dask().delayed(dask_arrays.merge_pools)
    while len(parts) > 1:
        parts = [merge(parts[start : start + MERGED_PER_TASK]) for start in range(0, len(parts), MERGED_PER_TASK)]
    return parts[0]


def fit(estimator: Any, X: Any, y: Any, sample_weight: Any) -> SelectedBandwidth:
    """Fit on Dask arrays. Only summaries of the blocks are computed; the data stay on the workers.

    Every block is read once, on a worker, and again whenever it is pooled: call `.persist()` on the arrays first if the
    workers can hold them.

    Args:
        estimator: the `NadarayaWatson`.
        X: (rows, dim), in blocks of rows; blocks of columns are joined.
        y: (rows,) or (rows, outputs), cut as X is.
        sample_weight: (rows,), cut as X is; or None.
    """
    if estimator.degree != 0:
        raise RegardError(
            "degree",
            got=f"{estimator.degree} with Dask arrays",
            needed="0, local means",
            repair="Fit local lines on arrays in memory.",
        )
    blocks = dask_arrays.align(X, y, sample_weight)
    dask = import_dask()
    summarize = dask.delayed(dask_arrays.summarize)
    summaries = dask.compute(*(summarize(*blocks.at(index)) for index in range(len(blocks))))
    whole = merge_summaries(summaries)
    check_extent(whole.low.astype(blocks.dtype), whole.high.astype(blocks.dtype))
    options = BandwidthOptions(estimator.bandwidth, int(estimator.exclude), estimator.per_dimension, estimator.verbose)
    selected = select(DaskSmoother(blocks, summaries, estimator.kernel, 1.0, 0, estimator.tolerance), options)
    estimator.n_features_in_ = blocks.dim
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    estimator._one_output = blocks.one_output
    return selected


# --- Bandwidth ---------------------------------------------------------------------------------------------------


def select(smoother: DaskSmoother, options: BandwidthOptions) -> SelectedBandwidth:
    """Return the curve with the bandwidth that the options ask for; its own bandwidth does not matter."""
    _check(options)
    if not isinstance(options.bandwidth, str) or options.bandwidth != "loo":
        alike = Smoother(two_point_summary(smoother), smoother.kernel, 1.0)
        return SelectedBandwidth(replace(smoother, width=bandwidth.select(alike, options).smoother.width))
    rows = _draw(smoother)
    drawn = Smoother(_take(smoother, rows), smoother.kernel, 1.0, 0, smoother.tolerance)
    if len(drawn.data.key) == merge_summaries(smoother.summaries).rows:
        selected = bandwidth_search.minimize(CriterionEvaluator(drawn, "loo", 0, options.verbose))
        return selected._replace(smoother=replace(smoother, width=selected.smoother.width))
    evaluator = DaskEvaluator(replace(smoother, without=rows), drawn, options.verbose)
    if options.verbose:
        print(f"[regard] loo uses {len(drawn.data.key)} rows of {evaluator.rows}, each predicted from all others")
    return bandwidth_search.minimize(evaluator)


class DaskEvaluator(CriterionEvaluator):
    """Leave-one-out of the rows that were drawn, over all blocks."""

    def __init__(self, smoother: DaskSmoother, drawn: Smoother, verbose: int) -> None:
        """smoother: leaves out the rows drawn. drawn: these rows, in memory."""
        super().__init__(drawn, "loo", 0, verbose)
        self.over_blocks = smoother
        self.total = merge_summaries(smoother.summaries)
        self.share = len(drawn.data.key) / self.total.rows
        if self.unit is not None:
            deviation = torch.from_numpy(np.sqrt(self.total.variance))
            self.unit = torch.where(deviation > 0, deviation, 1.0)

    @property
    def rows(self) -> int:
        """The number of rows of all blocks."""
        return self.total.rows

    @property
    def can_scan(self) -> bool:
        """One bandwidth is one pass over the data."""
        return False

    def smoother_at(self, position: float) -> Any:
        """Return the curve over all blocks, none of their rows left out."""
        return replace(self.over_blocks, width=self._width(position), without=None)

    def range(self) -> tuple[float, float]:
        """Return the range for the rows drawn, from a narrower bandwidth: all rows are closer to each other."""
        low, high = super().range()
        return low + math.log(self.share) / len(self.total.key) if low < high else low, high

    def sample(self) -> tuple[CriterionEvaluator, float]:
        """Return the criterion on rows drawn among those drawn, in memory, and their share of all rows."""
        if len(self.smoother.data.key) > bandwidth_search.SCAN_ROWS:
            few, share = super().sample()
        else:
            few, share = CriterionEvaluator(self.smoother, self.criterion, 0, 0), 1.0
            few.unit = self.unit
        return few, share * self.share

    def _evaluate(self, position: float) -> tuple[float, int]:
        width = self._width(position)
        drawn = replace(self.smoother, width=width)
        data = drawn.data
        own = drawn.pool_left_out(0)
        log_mass = own.log_mass.double().numpy()
        over_blocks = replace(self.over_blocks, width=width)
        others = over_blocks.pool_block(QueryBlock(data.key.numpy(), log_mass))
        pooled = dask_arrays.merge_pools([PartialPool(own.mean.numpy(), log_mass), others])
        isolated = np.isneginf(pooled.log_mass)
        value, weight = data.value.double().numpy(), np.ones(len(isolated))
        if data.weight is not None:
            weight = data.weight.double().numpy()
        left_out = np.minimum(weight, 1.0)[:, np.newaxis]
        mean_of_others = self.total.value + left_out * (self.total.value - value) / (self.total.weight - left_out)
        residual = value - np.where(isolated[:, np.newaxis], mean_of_others, pooled.mean)
        return float(np.average(np.square(residual), 0, weight).mean()), int(isolated.sum())

    def _width(self, position: float) -> Any:
        return super().smoother_at(position).width


def _check(options: BandwidthOptions) -> None:
    """Refuse what would need all pairs of blocks, or a gradient through them."""
    given = options.bandwidth
    by_name = isinstance(given, str) and (given in ("aicc", "gcv") or (given == "loo" and options.exclude > 0))
    if by_name or options.per_dimension or isinstance(given, Nearest):
        raise RegardError(
            "bandwidth",
            got=f"{given!r:.60}, exclude={options.exclude}, per_dimension={options.per_dimension} with Dask arrays",
            needed='a number, one per dimension, "loo", "scott" or "silverman", with exclude=0, per_dimension=False',
            repair="Choose the bandwidth on a sample in memory, and pass the number that it found.",
        )


def two_point_summary(smoother: DaskSmoother) -> Observations:
    """Return two rows with the variance and the total weight of all, which is all that a rule needs.

    They are placed around 0: around the mean of all, an offset would cost the digits of the variance.
    """
    total = merge_summaries(smoother.summaries)
    deviation = np.sqrt(total.variance)
    key = torch.from_numpy(np.stack([-deviation, deviation])).to(smoother.reference.dtype)
    weight = torch.full((2,), total.weight / 2, dtype=torch.float64, device="cpu")
    return Observations(key, key[:, :1], weight)


def _draw(smoother: DaskSmoother) -> tuple[np.ndarray, ...]:
    """Return for each block the positions of the rows that are drawn."""
    ends = np.cumsum([block.rows for block in smoother.summaries])
    random = np.random.default_rng(0)
    drawn = np.sort(random.choice(ends[-1], min(DRAWN_ROWS, ends[-1]), replace=False, shuffle=False))
    starts = ends - [block.rows for block in smoother.summaries]
    return tuple(
        drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, end)] - start
        for start, end in zip(starts, ends, strict=True)
    )


def _take(smoother: DaskSmoother, rows: tuple[np.ndarray, ...]) -> Observations:
    """Collect these rows."""
    dask = import_dask()
    needed = [index for index, positions in enumerate(rows) if len(positions)]
    take_rows = dask.delayed(dask_arrays.take_rows)
    taken = dask.compute(*(take_rows(smoother.block(index), rows[index], smoother.blocks.dtype) for index in needed))
    key, value, weight = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*taken, strict=True))
    return Observations(key, value, None if bool((weight == 1).all()) else weight)


# --- Lazy answers ------------------------------------------------------------------------------------------------


def lazy_answers(model: Any, X: Any, method: str) -> Any:
    """Return the lazy answers of model.predict or model.log_mass, in the blocks of X (queries, dim).

    A model fitted on Dask arrays pools blocks of X, small ones together, over each block of its data, a task for every
    pair. Up to QUERIES_PER_BLOCK queries the data stream through the workers. With more, Dask reads each block of the
    data once and holds it, or spills it to disk, until the last queries have been pooled over it: where that is too
    much, pass NumPy queries, which read the data anew for each batch.

    A model fitted on arrays in memory goes to the workers as it is, one task for every block of X.

    A lazy answer cannot warn: with empty="nan" it is NaN without a warning; with empty="raise" the task fails.
    """
    check_is_fitted(model)
    X = dask_arrays.whole_rows("X", X)
    if X.shape[1] != model.n_features_in_:
        raise RegardError(
            "X",
            got=f"{X.shape[1]} features",
            needed=f"the {model.n_features_in_} that the estimator was fitted on",
            repair="Pass the same columns.",
        )
    dask, smoother = import_dask(), model.smoother_
    rows = X.chunks[0]
    if isinstance(smoother, DaskSmoother):
        X = X if np.isnan(rows).any() else X.rechunk({0: _joined_chunks(rows)})
        answers = [_lazy_answer(smoother, block, method, model) for block in X.to_delayed().ravel()]
    else:
        # One node of the graph, so that it travels once to each worker.
        shared = dask.delayed(model, traverse=False)
        answers = [dask.delayed(_answer)(shared, block, method) for block in X.to_delayed().ravel()]
    columns = () if method == "log_mass" or model._one_output else (smoother.outputs,)
    dtype = torch.empty(0, dtype=smoother.reference.dtype, device="cpu").numpy().dtype
    parts = [
        dask.array.from_delayed(answer, (count, *columns), dtype)
        for answer, count in zip(answers, X.chunks[0], strict=True)
    ]
    whole = dask.array.concatenate(parts, allow_unknown_chunksizes=True)
    return whole if np.isnan(rows).any() else whole.rechunk({0: rows})


def _joined_chunks(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return lengths of blocks, joined with their neighbours while they are small."""
    joined = [rows[0]]
    for count in rows[1:]:
        if joined[-1] + count <= QUERIES_PER_BLOCK:
            joined[-1] += count
        else:
            joined.append(count)
    return tuple(joined)


def _lazy_answer(smoother: DaskSmoother, query: Any, method: str, model: Any) -> Any:
    """Return the lazy answer to one block of queries."""
    delayed, every, policy = import_dask().delayed, range(len(smoother.blocks)), model.empty
    summaries = delayed(smoother.summaries, traverse=False)
    prepare, dtype = delayed(dask_arrays.prepare_queries), smoother.blocks.dtype
    queries = prepare(query, summaries, smoother.kernel, smoother.width, dtype)
    part = smoother.lazy_pool(queries, every)
    if method == "log_mass":
        return delayed(_log_mass)(part, dtype)
    constant: Any = smoother.overall_mean().numpy() if policy == "mean" else np.nan
    if policy == "nearest" and KERNELS[smoother.kernel].is_compact:
        for widths in empty_windows.WIDTHS:
            nearest = replace(smoother, kernel="gaussian", width=smoother.width * widths)
            unanswered = delayed(_unanswered)(queries, part)
            unanswered = prepare(unanswered, summaries, nearest.kernel, nearest.width, dtype)
            part = delayed(_with_answers)(part, nearest.lazy_pool(unanswered, every))
    return delayed(_filled)(part, constant, policy, model._one_output)


def _answer(model: Any, query: np.ndarray, method: str) -> np.ndarray:
    return getattr(model, method)(query)


def _log_mass(part: PartialPool, dtype: np.dtype) -> np.ndarray:
    return part.log_mass.astype(dtype)


def _unanswered(queries: QueryBlock, part: PartialPool) -> np.ndarray:
    """Return the queries whose window is empty in every block."""
    return queries.query[np.isneginf(part.log_mass)]


def _with_answers(part: PartialPool, answers: PartialPool) -> PartialPool:
    """Return the pool with answers where it had none."""
    empty = np.isneginf(part.log_mass)
    whole = PartialPool(part.mean.copy(), part.log_mass.copy())
    for numbers, found in zip(whole, answers, strict=True):
        numbers[empty] = found
    return whole


def _filled(part: PartialPool, constant: Any, policy: str, one_output: bool) -> np.ndarray:
    """Return the means, with the constant in empty windows."""
    empty = np.isneginf(part.log_mass)
    if policy == "raise":
        empty_windows.report(int(empty.sum()), len(empty), policy)
    mean = part.mean.copy()
    mean[empty] = constant
    return mean[:, 0] if one_output else mean
