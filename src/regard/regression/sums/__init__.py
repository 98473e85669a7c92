"""Kernel sums (eq. 4): the first method that supports a task computes it.

Few pairs, and every task that no other method supports, go through `attend` (`all_pairs`). Data of one dimension are
sorted and summed in near-linear time (`line`, with `running_sums` for compact kernels and the Laplacian, and `gaussian`
for the Gaussian). Compact kernels in two and three dimensions compare boxes of neighbours (`boxes`).
"""

from torch import Tensor

from regard.regression.sums import all_pairs, boxes, line
from regard.regression.sums.gaussian import GaussianSums
from regard.regression.sums.observations import Moments, Observations, Pool, PoolTask
from regard.regression.sums.running_sums import CompactSums, LaplacianSums, squared
from regard.scores.kernels import KERNELS

__all__ = ["Moments", "Observations", "Pool", "PoolTask", "can_square", "line_method", "pool", "pool_squared"]

# Up to this many pairs, computing all pairs is faster than sorting. Weighted data are always sorted: far from a query,
# adding log weights to large scores loses digits, and sums on a line are relative to the nearest key.
FEW_PAIRS = 2**16
# The squares of polynomials cancel more digits. They give variances, which may have this relative error.
SQUARED_TOLERANCE = 1e-9


def pool(task: PoolTask) -> Pool:
    """Pool every query over the data."""
    if task.pairs > FEW_PAIRS or task.data.weight is not None:
        method = line_method(task)
        if method is not None:
            return line.pool(task, method)
        if boxes.supports(task):
            return boxes.pool(task)
    return all_pairs.pool(task)


def line_method(task: PoolTask) -> type[line.LineMethod] | None:
    """Return the near-linear method for data of one dimension, None if there is none for this task."""
    width = task.width
    if not task.data.is_sortable or task.leave_out not in (None, 0) or task.query.requires_grad:
        return None
    if isinstance(width, Tensor) and (width.requires_grad or (width.numel() != 1 and not task.has_width_per_query)):
        return None
    if task.kernel.is_compact:
        return CompactSums
    if task.has_width_per_query:
        return None
    return {"gaussian": GaussianSums, "laplacian": LaplacianSums}.get(task.kernel.name)


def can_square(task: PoolTask) -> bool:
    """Whether `pool_squared` supports the task: the square is a kernel too, or the data have one dimension."""
    return task.kernel.square is not None or (task.kernel.is_compact and line_method(task) is not None)


def pool_squared(task: PoolTask) -> Pool:
    """Pool every query over the data with the square of the kernel; moments only if the square is a kernel too.

    The variance of an estimate is sum_j f(q, k_j)^2 sigma_j^2 divided by the square of its mass.
    """
    if task.kernel.square is not None:
        name, ratio = task.kernel.square
        return pool(task._replace(kernel=KERNELS[name], width=task.width * ratio))
    assert not task.moments
    loose = max(task.tolerance or 0.0, SQUARED_TOLERANCE)
    return line.pool(task._replace(kernel=squared(task.kernel), tolerance=loose), CompactSums)
