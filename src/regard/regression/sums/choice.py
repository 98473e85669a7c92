"""Which way the kernel sums of a regression are computed."""

from torch import Tensor

from regard.regression.sums import all_pairs, boxes, on_line
from regard.regression.sums.line import SortedData
from regard.regression.sums.observations import Kernel, Observations, Pool

Prepared = Observations | SortedData
# Up to here all pairs at once are faster than sorting and cells. Not with weights: far away their logarithms drown in
# the scores, while the sums on a line are taken relative to the nearest key.
FEW_PAIRS = 2**16


def prepare(data: Observations) -> Prepared:
    """Do once what does not depend on the queries or the kernel: numbers on a line are sorted."""
    return SortedData.of(data) if on_line.can_sort(data) else data


def pool(
    query: Tensor,
    data: Prepared,
    kernel: Kernel,
    *,
    exclude: int | None = None,
    moments: bool = False,
    tolerance: float | None = None,
) -> Pool:
    """Pool every query over the data (eq. 4).

    Args:
        query: (queries, dim).
        data: keys, values and weights, or what `prepare` made of them: for many calls on the same data.
        kernel: its name and width.
        exclude: None; or the queries are the keys in the same order, and each leaves out itself and that many rows
            on each side; with 0, a row of weight w leaves out min(w, 1) of itself.
        moments: also the moments of the keys about each query, for local linear regression; not with `exclude`.
        tolerance: bounds |mean - exact| / (max value - min value) at every query; None is the rounding of the dtype.
    """
    line = data if isinstance(data, SortedData) else None
    data = data.data if isinstance(data, SortedData) else data
    few = data.weight is None and len(query) * len(data.key) <= FEW_PAIRS
    if not few and on_line.can_pool(query, kernel, exclude) and (line is not None or on_line.can_sort(data)):
        line = SortedData.of(data) if line is None else line
        return on_line.pool(query, line, kernel, exclude=exclude, moments=moments, tolerance=tolerance)
    if exclude in (None, 0) and boxes.suits(query, data, kernel):
        return boxes.pool(query, data, kernel, exclude=exclude, moments=moments)
    return all_pairs.pool(query, data, kernel, exclude=exclude, moments=moments)
