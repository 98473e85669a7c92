"""Which way the kernel sums of a regression are computed."""

from torch import Tensor

from regard.regression.sums import through_attend
from regard.regression.sums.record import Data, Kernel, Pool


def pool(
    query: Tensor,
    data: Data,
    kernel: Kernel,
    *,
    exclude: int | None = None,
    moments: bool = False,
    tolerance: float | None = None,
) -> Pool:
    """Pool every query over the data (eq. 4).

    Args:
        query: (queries, dim).
        data: keys, values and weights.
        kernel: its name and width.
        exclude: None; or the queries are the keys in the same order, and each leaves out itself and that many rows
            on each side; with 0, a row of weight w leaves out min(w, 1) of itself.
        moments: also the moments of the keys about each query, for local linear regression; not with `exclude`.
        tolerance: bounds |mean - exact| / (max value - min value) at every query; None is the rounding of the dtype.
    """
    del tolerance
    return through_attend.pool(query, data, kernel, exclude=exclude, moments=moments)
