"""Answers to queries in a Dask array: a lazy array, made block by block."""

# ruff: noqa: N803, N806 (X is what scikit-learn calls it)

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from regard.errors import RegardError
from regard.regression import empty
from regard.regression.distributed import tasks
from regard.regression.distributed.collections import dask_of_extra, whole_rows
from regard.regression.distributed.scattered import Scattered
from regard.regression.search import SMOOTH_KERNELS
from regard.regression.sums import Kernel

# Queries that are pooled together: while they are, each block of the data is needed once and can be forgotten.
QUERIES_AT_ONCE = 2**17


def answer_block_by_block(model: Any, X: Any, method: str) -> Any:
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
    dask, smoother = dask_of_extra(), model.smoother_
    rows = X.chunks[0]
    if isinstance(smoother, Scattered):
        X = X if np.isnan(rows).any() else X.rechunk({0: _together(rows)})
        answers = [
            _planned(smoother, block, method, model.empty, model._one_output) for block in X.to_delayed().ravel()
        ]
    else:
        # One node of the graph, so that it travels once to each worker.
        shared = dask.delayed(model, traverse=False)
        answers = [dask.delayed(_ask)(shared, block, method) for block in X.to_delayed().ravel()]
    columns = () if method == "log_mass" or model._one_output else (smoother.outputs,)
    dtype = torch.empty(0, dtype=smoother.like.dtype, device="cpu").numpy().dtype
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


def _planned(smoother: Scattered, query: Any, method: str, policy: str, one_output: bool) -> Any:
    """The lazy answer to one block of queries."""
    delayed, every = dask_of_extra().delayed, range(len(smoother.blocks))
    summaries = delayed(smoother.summaries, traverse=False)
    asked = delayed(tasks.ask)(query, summaries, smoother.as_kernel(), smoother.blocks.dtype)
    part = smoother.planned(asked, every)
    if method == "log_mass":
        return delayed(_log_mass)(part, smoother.blocks.dtype)
    instead: Any = smoother.overall_mean().numpy() if policy == "mean" else np.nan
    if policy == "nearest" and smoother.kernel not in SMOOTH_KERNELS:
        for windows in empty.WIDTHS:
            nearest = replace(smoother, kernel="gaussian", width=smoother.width * windows)
            unanswered = delayed(_unanswered)(asked, part, summaries, nearest.as_kernel())
            part = delayed(_answered)(part, nearest.planned(unanswered, every))
    return delayed(_filled)(part, instead, policy, one_output)


def _ask(model: Any, query: np.ndarray, method: str) -> np.ndarray:
    return getattr(model, method)(query)


def _log_mass(part: tasks.Part, dtype: np.dtype) -> np.ndarray:
    return (part.peak + part.log_mass).astype(dtype)


def _unanswered(asked: tasks.Asked, part: tasks.Part, summaries: Any, kernel: Kernel) -> tasks.Asked:
    """The queries whose window is empty in every block."""
    return tasks.ask(asked.query[np.isneginf(part.log_mass)], summaries, kernel, asked.query.dtype)


def _answered(part: tasks.Part, others: tasks.Part) -> tasks.Part:
    """The part, with the others where it had no answer."""
    missing = np.isneginf(part.log_mass)
    whole = tasks.Part(*(numbers.copy() for numbers in part))
    for numbers, found in zip(whole, others, strict=True):
        numbers[missing] = found
    return whole


def _filled(part: tasks.Part, instead: Any, policy: str, one_output: bool) -> np.ndarray:
    """The means, with what the policy says in empty windows."""
    missing = np.isneginf(part.log_mass)
    if policy == "raise":
        empty.tell(int(missing.sum()), len(missing), policy)
    mean = part.mean.copy()
    mean[missing] = instead
    return mean[:, 0] if one_output else mean
