"""The fit on Dask arrays: one pass over the blocks that checks them and sums them up, and the width."""

# ruff: noqa: N803 (X is what scikit-learn calls it)

from typing import Any

from regard.errors import RegardError
from regard.regression.arrays import check_extent
from regard.regression.bandwidth import Chosen, Wish
from regard.regression.distributed.collections import align, dask_of_extra
from regard.regression.distributed.scattered import Scattered
from regard.regression.distributed.summary import join, summarise
from regard.regression.distributed.width import choose


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
    dask = dask_of_extra()
    summaries = dask.compute(*(dask.delayed(summarise)(*blocks.at(i)) for i in range(len(blocks))))
    whole = join(summaries)
    check_extent(whole.low.astype(blocks.dtype), whole.high.astype(blocks.dtype))
    wish = Wish(estimator.bandwidth, int(estimator.exclude), estimator.per_dimension, estimator.verbose)
    chosen = choose(Scattered(blocks, summaries, estimator.kernel, 1.0, 0, estimator.tolerance), wish)
    estimator.n_features_in_ = blocks.dim
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    estimator._one_output = blocks.one_output
    return chosen
