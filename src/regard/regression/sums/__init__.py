"""Kernel sums: by `attend`, or in near-linear time where the kernel and the dimension allow it."""

from regard.regression.sums.choice import Prepared, pool, prepare
from regard.regression.sums.record import Data, Kernel, Moments, Pool
from regard.regression.sums.squares import can_square, pool_squares

__all__ = ["Data", "Kernel", "Moments", "Pool", "Prepared", "can_square", "pool", "pool_squares", "prepare"]
