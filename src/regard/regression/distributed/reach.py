"""Which queries a block of the data can matter to, judged by the box around its keys alone.

Where data lie in some order (by time, by place), most blocks hold nothing for most queries: a compact window does not
reach them, and a Gaussian's mass there is below the smallest float64 times what nearer blocks hold for certain. What
is left out does not change a digit of the result.
"""

from collections.abc import Sequence

import numpy as np
import torch

from regard.regression.distributed.summary import Summary
from regard.regression.sums import Kernel
from regard.scores.kernels import KERNELS

# exp(-746) is 0 in float64.
UNSEEN = 746.0
# The boxes are compared in float64, the kernels of float32 data in float32.
SLACK = 1e-5


# A distance beyond this counts as this, so that no square overflows: however far away, a Gaussian is not empty.
FARTHEST = 1e150


def certain(query: np.ndarray, summaries: Sequence[Summary], kernel: Kernel) -> np.ndarray:
    """(queries,): a log mass that one of the blocks has for certain, minus infinity where none is certain."""
    floor = np.full(len(query), -np.inf)
    for block in summaries:
        if block.rows:
            to_low, to_high = (_in_widths(np.abs(query - edge), kernel) for edge in (block.low, block.high))
            near, far = np.square(np.minimum(to_low, to_high)), np.square(np.maximum(to_low, to_high))
            # Every face of the box has a key on it, which is at most this far away.
            farthest = (far.sum(-1, keepdims=True) - far + near).min(-1) * (1 + SLACK)
            floor = np.maximum(floor, _log_kernel(farthest, kernel) + np.log(block.lightest))
    return floor


def matters(query: np.ndarray, block: Summary, kernel: Kernel, floor: np.ndarray) -> np.ndarray:
    """(queries,): False where the block adds nothing to what is certain."""
    if not block.rows:
        return np.zeros(len(query), dtype=bool)
    away = _in_widths(np.maximum(np.maximum(block.low - query, query - block.high), 0.0), kernel)
    most = _log_kernel(np.square(away).sum(-1) * (1 - SLACK), kernel) + np.log(block.weight)
    return (most > -np.inf) & (most >= floor - UNSEEN)


def _in_widths(distance: np.ndarray, kernel: Kernel) -> np.ndarray:
    width = np.asarray(kernel.width, dtype=np.float64)
    return np.minimum(distance, FARTHEST * width) / width


def _log_kernel(z: np.ndarray, kernel: Kernel) -> np.ndarray:
    return KERNELS[kernel.name].log_of_ratio(torch.from_numpy(z)).numpy()
