"""Kernel sums: by `attend`, or in near-linear time where the kernel and the dimension allow it."""

from regard.regression.sums.choice import Prepared, pool, prepare
from regard.regression.sums.observations import Kernel, Moments, Observations, Pool
from regard.regression.sums.squares import can_square, pool_squares

__all__ = ["Kernel", "Moments", "Observations", "Pool", "Prepared", "can_square", "pool", "pool_squares", "prepare"]
