"""The fitted curve over Dask blocks: fit, bandwidth, lazy answers."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

# ruff: noqa: N803 (X is what scikit-learn calls it)

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
from regard.regression.bandwidth import BandwidthOptions, Chosen
from regard.regression.bandwidth_search import SMOOTH_KERNELS
from regard.regression.dask_arrays import (
    Blocks,
    Summary,
    align,
    can_contribute,
    import_dask,
    merge_summaries,
    summarize,
    whole_rows,
)
from regard.regression.smoother import Fit, Nearest, Smoother
from regard.regression.sums import Kernel, Observations, Pool
from regard.regression.validation import check_extent

# Parts joined by one task: each holds a few numbers for every query of a block.
JOINED_AT_ONCE = 8
# Numbers that go to the workers with one plan: 2^20 float64 are 8 MiB; Dask warns beyond 10.
NUMBERS_SENT = 2**20


@dataclass(frozen=True)
class DaskSmoother:
    """Nadaraya-Watson smoothing (eq. 4) of data in blocks.

    blocks: lazy. summaries: one for each block. width: one number, or one per dimension (dim,). without: for each
    block the positions that are left out of it, among its rows of positive weight; or None.
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
        """Refuse: what asks for all observations at once cannot be answered from blocks."""
        raise RegardError(
            "X",
            got="a model fitted on Dask arrays",
            needed="observations in memory, for anything but predict, log_mass and pool",
            repair="Fit a model on a sample in memory with the same bandwidth: NadarayaWatson(bandwidth="
            "model.bandwidth_).fit(X[rows].compute(), y[rows].compute()).",
        )

    @property
    def like(self) -> Tensor:
        """An empty tensor of the dtype in which queries are pooled."""
        return torch.from_numpy(np.empty((0, self.blocks.dim), self.blocks.dtype))

    def place(self, query: Tensor) -> Tensor:
        """The query in the coordinates of the keys: as it is."""
        return query

    def pool(self, query: Tensor) -> Pool:
        """The kernel sums of each query (queries, dim); the workers compute them now."""
        some = max(NUMBERS_SENT // (query.shape[1] + 1), 1)
        blocks = (block.numpy() for block in query.split(some))
        parts = [
            self.pool_asked(dask_arrays.prepare_queries(block, self.summaries, self.as_kernel(), block.dtype))
            for block in blocks
        ]
        log_mass = np.concatenate([part.peak + part.log_mass for part in parts])
        mean = np.concatenate([part.mean for part in parts])
        return Pool(torch.from_numpy(mean), torch.from_numpy(log_mass).to(query.dtype))

    def fit(self, query: Tensor) -> Fit:
        """The estimate at each query."""
        pooled = self.pool(query)
        return Fit(pooled.mean, pooled.log_mass, (-pooled.log_mass).exp())

    def pool_asked(self, asked: dask_arrays.QueryBlock) -> dask_arrays.Part:
        """The same of one block of queries, ready to be joined with other parts."""
        needed = [
            i
            for i, block in enumerate(self.summaries)
            if can_contribute(asked.query, block, self.as_kernel(), asked.floor).any()
        ]
        if not needed:
            return dask_arrays.Part.empty(len(asked.query), self.outputs, asked.query.dtype)
        (part,) = import_dask().compute(self.planned(asked, needed))
        return part

    def planned(self, asked: Any, blocks: Sequence[int]) -> Any:
        """The lazy Part of Asked queries, lazy or not, over these blocks."""
        delayed = import_dask().delayed
        asked, pool, kernel = delayed(asked), delayed(dask_arrays.pool_block), self.as_kernel()
        return merge_tree([pool(asked, self.block(i), self.summaries[i], kernel, self.tolerance) for i in blocks])

    def block(self, index: int) -> dask_arrays.Block:
        """One lazy block."""
        return dask_arrays.Block(*self.blocks.at(index), None if self.without is None else self.without[index])

    def as_kernel(self) -> Kernel:
        """The kernel with its width."""
        return Kernel(self.kernel, self.width)

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return len(self.summaries[0].value)

    def total(self) -> float:
        """How many observations there are, repetitions counted."""
        return merge_summaries(self.summaries).weight

    def overall_mean(self) -> Tensor:
        """(outputs,): the mean of all values."""
        return torch.as_tensor(merge_summaries(self.summaries).value).to(self.like.dtype)


def merge_tree(parts: list[Any]) -> Any:
    """Join lazy parts, a few at a time, until one is left."""
    joined = import_dask().delayed(dask_arrays.merge_parts)
    while len(parts) > 1:
        parts = [joined(parts[start : start + JOINED_AT_ONCE]) for start in range(0, len(parts), JOINED_AT_ONCE)]
    return parts[0]


JUDGED_ROWS = 2**15


def select(scattered: DaskSmoother, wish: bandwidth.BandwidthOptions) -> bandwidth.Chosen:
    """The curve with the width that was wished for; its own width does not matter."""
    _check(wish)
    if not isinstance(wish.bandwidth, str) or wish.bandwidth != "loo":
        alike = bandwidth.select(Smoother(two_point_summary(scattered), scattered.kernel, 1.0), wish).smoother
        return _selected(_with_width(scattered, alike.width))
    rows = _draw(scattered)
    judged = _take(scattered, rows)
    smoother = Smoother(judged, scattered.kernel, 1.0, 0, scattered.tolerance)
    if len(judged.key) == merge_summaries(scattered.summaries).rows:
        found = bandwidth_search.minimize(bandwidth_search.CriterionEvaluator(smoother, "loo", 0, wish.verbose))
        return _selected(_with_width(scattered, found.smoother.width), *found[1:])
    judge = DaskEvaluator(replace(scattered, without=rows), smoother, wish.verbose)
    if wish.verbose:
        print(f"[regard] loo is judged on {len(judged.key)} rows of {judge.rows}, each predicted from all others")
    return _selected(*bandwidth_search.minimize(judge))


class DaskEvaluator(bandwidth_search.CriterionEvaluator):
    """Leave-one-out of the rows that were drawn, over all blocks."""

    def __init__(self, scattered: DaskSmoother, drawn: Smoother, verbose: int) -> None:
        """scattered: leaves out the rows drawn. drawn: these rows, in memory."""
        super().__init__(drawn, "loo", 0, verbose)
        self.scattered = scattered
        self.total = merge_summaries(scattered.summaries)
        self.share = len(drawn.data.key) / self.total.rows
        if self.unit is not None:
            spread = torch.from_numpy(np.sqrt(self.total.spread))
            self.unit = torch.where(spread > 0, spread, 1.0)

    @property
    def rows(self) -> int:
        """Rows of all blocks."""
        return self.total.rows

    def at(self, place: float) -> float:
        """The criterion where the logarithm of the factor is `place`."""
        drawn = replace(self.smoother, width=self._width(place))
        data = drawn.data
        own = drawn.pool_left_out(0)
        floor = own.log_mass.double().numpy()
        among = dask_arrays.Part(own.mean.numpy(), floor, np.zeros_like(floor))
        others = _with_width(self.scattered, drawn.width).pool_asked(dask_arrays.QueryBlock(data.key.numpy(), floor))
        pooled = dask_arrays.merge_parts([among, others])
        alone = np.isneginf(pooled.log_mass)
        value, weight = data.value.double().numpy(), np.ones(len(alone))
        if data.weight is not None:
            weight = data.weight.double().numpy()
        out = np.minimum(weight, 1.0)[:, np.newaxis]
        mean_of_others = self.total.value + out * (self.total.value - value) / (self.total.weight - out)
        residual = value - np.where(alone[:, np.newaxis], mean_of_others, pooled.mean)
        return self.remember(place, float(np.average(np.square(residual), 0, weight).mean()), int(alone.sum()))

    def smoother_at(self, place: float) -> Any:
        """The curve over all blocks, none of their rows left out."""
        return replace(self.scattered, width=self._width(place), without=None)

    def range_of_places(self) -> tuple[float, float]:
        """All rows are closer to each other than those drawn."""
        low, high = super().range_of_places()
        return low + math.log(self.share) / len(self.total.key) if low < high else low, high

    def sampled(self) -> tuple[bandwidth_search.CriterionEvaluator, float]:
        """The criterion on rows drawn among those drawn, in memory."""
        if len(self.smoother.data.key) > bandwidth_search.SCAN_ROWS:
            few, share = super().sampled()
        else:
            few, share = bandwidth_search.CriterionEvaluator(self.smoother, self.criterion, 0, 0), 1.0
            few.unit = self.unit
        return few, share * self.share

    def _width(self, place: float) -> Any:
        return super().smoother_at(place).width


def _with_width(scattered: DaskSmoother, width: Any) -> DaskSmoother:
    """A number, or one per dimension; widths that adapt were refused."""
    return replace(scattered, width=width)


def _selected(curve: Any, *found: Any) -> bandwidth.Chosen:
    """Scattered answers what an estimator asks of a Smoother."""
    return bandwidth.Chosen(curve, *found)


def _check(wish: bandwidth.BandwidthOptions) -> None:
    """What would need all pairs of blocks, or a gradient through them, is refused."""
    asked = wish.bandwidth
    by_name = isinstance(asked, str) and (asked in ("aicc", "gcv") or (asked == "loo" and wish.exclude > 0))
    if by_name or wish.per_dimension or isinstance(asked, Nearest):
        raise RegardError(
            "bandwidth",
            got=f"{asked!r:.60}, exclude={wish.exclude}, per_dimension={wish.per_dimension} with Dask arrays",
            needed='a number, one per dimension, "loo", "scott" or "silverman", with exclude=0, per_dimension=False',
            repair="Choose the bandwidth on a sample in memory, and pass the number that it found.",
        )


def two_point_summary(scattered: DaskSmoother) -> Observations:
    """Two rows with the spread and the total weight of all, which is what a rule looks at.

    They lie around 0: around the mean of all, an offset would eat the digits of the spread.
    """
    total = merge_summaries(scattered.summaries)
    apart = np.sqrt(total.spread)
    key = torch.from_numpy(np.stack([-apart, apart])).to(scattered.like.dtype)
    return Observations(key, key[:, :1], torch.full((2,), total.weight / 2, dtype=torch.float64))


def _draw(scattered: DaskSmoother) -> tuple[np.ndarray, ...]:
    """For each block the positions of the rows that are judged."""
    ends = np.cumsum([block.rows for block in scattered.summaries])
    random = np.random.default_rng(0)
    drawn = np.sort(random.choice(ends[-1], min(JUDGED_ROWS, ends[-1]), replace=False, shuffle=False))
    starts = ends - [block.rows for block in scattered.summaries]
    return tuple(
        drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, end)] - start
        for start, end in zip(starts, ends, strict=True)
    )


def _take(scattered: DaskSmoother, rows: tuple[np.ndarray, ...]) -> Observations:
    """These rows, here."""
    dask = import_dask()
    needed = [i for i, positions in enumerate(rows) if len(positions)]
    taken = dask.compute(
        *(dask.delayed(dask_arrays.take_rows)(scattered.block(i), rows[i], scattered.blocks.dtype) for i in needed)
    )
    key, value, weight = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*taken, strict=True))
    return Observations(key, value, None if bool((weight == 1).all()) else weight)


# Queries that are pooled together: while they are, each block of the data is needed once and can be forgotten.
QUERIES_AT_ONCE = 2**17


def lazy_answers(model: Any, X: Any, method: str) -> Any:
    """The lazy answers of model.predict or model.log_mass to X (queries, dim), in the blocks of X.

    A model fitted on Dask arrays pools blocks of X, small ones together, over each block of its data, a task for every
    pair. Up to QUERIES_AT_ONCE queries the data stream through the workers. With more, Dask reads each block of the
    data once and holds it, or spills it to disk, until the last queries have seen it: where that is too much, ask with
    NumPy queries, which read the data anew for each batch.
    A model fitted on arrays in memory goes to the workers as it is, one task for every block of X.

    A lazy answer cannot warn: with empty="nan" it is NaN without a word; with empty="raise" the task fails.
    """
    check_is_fitted(model)
    X = whole_rows("X", X)
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
        X = X if np.isnan(rows).any() else X.rechunk({0: _together(rows)})
        answers = [
            _planned(smoother, block, method, model.empty, model._one_output) for block in X.to_delayed().ravel()
        ]
    else:
        # One node of the graph, so that it travels once to each worker.
        shared = dask.delayed(model, traverse=False)
        answers = [dask.delayed(_ask)(shared, block, method) for block in X.to_delayed().ravel()]
    columns = () if method == "log_mass" or model._one_output else (smoother.outputs,)
    dtype = torch.empty(0, dtype=smoother.like.dtype).numpy().dtype
    parts = [
        dask.array.from_delayed(answer, (count, *columns), dtype)
        for answer, count in zip(answers, X.chunks[0], strict=True)
    ]
    whole = dask.array.concatenate(parts, allow_unknown_chunksizes=True)
    return whole if np.isnan(rows).any() else whole.rechunk({0: rows})


def _together(rows: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths of blocks, joined with their neighbours while they are small."""
    joined = [rows[0]]
    for count in rows[1:]:
        if joined[-1] + count <= QUERIES_AT_ONCE:
            joined[-1] += count
        else:
            joined.append(count)
    return tuple(joined)


def _planned(smoother: DaskSmoother, query: Any, method: str, policy: str, one_output: bool) -> Any:
    """The lazy answer to one block of queries."""
    delayed, every = import_dask().delayed, range(len(smoother.blocks))
    summaries = delayed(smoother.summaries, traverse=False)
    asked = delayed(dask_arrays.prepare_queries)(query, summaries, smoother.as_kernel(), smoother.blocks.dtype)
    part = smoother.planned(asked, every)
    if method == "log_mass":
        return delayed(_log_mass)(part, smoother.blocks.dtype)
    instead: Any = smoother.overall_mean().numpy() if policy == "mean" else np.nan
    if policy == "nearest" and smoother.kernel not in SMOOTH_KERNELS:
        for windows in empty_windows.WIDTHS:
            nearest = replace(smoother, kernel="gaussian", width=smoother.width * windows)
            unanswered = delayed(_unanswered)(asked, part, summaries, nearest.as_kernel())
            part = delayed(_answered)(part, nearest.planned(unanswered, every))
    return delayed(_filled)(part, instead, policy, one_output)


def _ask(model: Any, query: np.ndarray, method: str) -> np.ndarray:
    return getattr(model, method)(query)


def _log_mass(part: dask_arrays.Part, dtype: np.dtype) -> np.ndarray:
    return (part.peak + part.log_mass).astype(dtype)


def _unanswered(
    asked: dask_arrays.QueryBlock, part: dask_arrays.Part, summaries: Any, kernel: Kernel
) -> dask_arrays.QueryBlock:
    """The queries whose window is empty in every block."""
    return dask_arrays.prepare_queries(asked.query[np.isneginf(part.log_mass)], summaries, kernel, asked.query.dtype)


def _answered(part: dask_arrays.Part, others: dask_arrays.Part) -> dask_arrays.Part:
    """The part, with the others where it had no answer."""
    missing = np.isneginf(part.log_mass)
    whole = dask_arrays.Part(*(numbers.copy() for numbers in part))
    for numbers, found in zip(whole, others, strict=True):
        numbers[missing] = found
    return whole


def _filled(part: dask_arrays.Part, instead: Any, policy: str, one_output: bool) -> np.ndarray:
    """The means, with what the policy says in empty windows."""
    missing = np.isneginf(part.log_mass)
    if policy == "raise":
        empty_windows.report(int(missing.sum()), len(missing), policy)
    mean = part.mean.copy()
    mean[missing] = instead
    return mean[:, 0] if one_output else mean


def fit(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Chosen:
    """Check on Dask arrays; it keeps the lazy blocks, and nothing is collected.

    X: (rows, dim), in blocks of rows; blocks of columns are joined. y: (rows,) or (rows, outputs), sample_weight:
    (rows,); they are cut as X is. Every block is read once, on a worker, and again whenever it is pooled: call
    `.persist()` on the arrays first where the workers can hold them.
    """
    if estimator.degree != 0:
        raise RegardError(
            "degree",
            got=f"{estimator.degree} with Dask arrays",
            needed="0, local means",
            repair="Fit local lines on arrays in memory.",
        )
    estimator._check_parameters()
    blocks = align(X, y, sample_weight)
    dask = import_dask()
    summaries = dask.compute(*(dask.delayed(summarize)(*blocks.at(i)) for i in range(len(blocks))))
    whole = merge_summaries(summaries)
    check_extent(whole.low.astype(blocks.dtype), whole.high.astype(blocks.dtype))
    wish = BandwidthOptions(estimator.bandwidth, int(estimator.exclude), estimator.per_dimension, estimator.verbose)
    chosen = select(DaskSmoother(blocks, summaries, estimator.kernel, 1.0, 0, estimator.tolerance), wish)
    estimator.n_features_in_ = blocks.dim
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    estimator._one_output = blocks.one_output
    return chosen
