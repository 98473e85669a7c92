"""What a worker does with one block of the data: pool queries over it, and join what several blocks gave.

Everything that travels is NumPy: its size is known to Dask, which decides by it what to keep in memory.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import Attended, inspect, merge
from regard.errors import RegardError
from regard.regression import arrays
from regard.regression.distributed.reach import certain, matters
from regard.regression.distributed.summary import Summary, in_columns
from regard.regression.sums import Kernel, Observations
from regard.regression.sums import pool as pool_all
from regard.regression.sums.all_pairs import as_score

# Below this a log mass is too large a number to hold the ratio of two masses to 1e-12.
FAR = -1024.0
# Scores that exist at once for rows so far away: 2^20 float64 numbers are 8 MiB.
SCORES_AT_ONCE = 2**20


class Part(NamedTuple):
    """Queries pooled over some of the keys.

    mean: (queries, outputs), 0 where no key is in the window. log_mass: (queries,) float64, minus infinity there, less
    peak. peak: (queries,) float64, the best score where the mass is so small that its logarithm would hide the digits
    that compare it with another part's; 0 elsewhere.
    """

    mean: np.ndarray
    log_mass: np.ndarray
    peak: np.ndarray

    @classmethod
    def empty(cls, queries: int, outputs: int, dtype: np.dtype) -> "Part":
        """No key in any window."""
        return cls(np.zeros((queries, outputs), dtype), np.full(queries, -np.inf), np.zeros(queries))


class Asked(NamedTuple):
    """Queries (queries, dim), and the log mass (queries,) that each of them is certain to find somewhere."""

    query: np.ndarray
    floor: np.ndarray


class Block(NamedTuple):
    """One block of the data: X (rows, dim), y (rows,) or (rows, outputs), weight (rows,) or None.

    without: positions among the rows of positive weight that are left out, or None.
    """

    X: Any
    y: Any
    weight: Any
    without: np.ndarray | None = None


def observe(block: Block, dtype: np.dtype) -> Observations:
    """A block as tensors, without the rows of weight 0 and those that it leaves out."""
    key, value = (arrays.as_tensor(np.asarray(part, dtype=dtype)) for part in (block.X, in_columns(block.y)))
    weight = None if block.weight is None else arrays.as_tensor(np.asarray(block.weight, dtype=dtype))
    data = Observations(key, value, weight)
    if weight is not None and not bool((weight > 0).all()):
        data = _rows(data, weight > 0)
    if block.without is not None:
        stay = torch.ones(len(data.key), dtype=torch.bool)
        stay[torch.tensor(block.without)] = False
        data = _rows(data, stay)
    return data


def take(block: Block, rows: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Some rows of a block, by their positions: key, value and weight."""
    data = _rows(observe(block, dtype), torch.tensor(rows))
    weight = torch.ones_like(data.key[:, 0]) if data.weight is None else data.weight
    return data.key.numpy(), data.value.numpy(), weight.numpy()


def pool(asked: Asked, block: Block, summary: Summary, kernel: Kernel, tolerance: float | None) -> Part:
    """Pool the queries over one block; those that it cannot matter to see nothing there."""
    query = asked.query
    part = Part.empty(len(query), len(summary.value), query.dtype)
    rows = np.flatnonzero(matters(query, summary, kernel, asked.floor))
    if not len(rows):
        return part
    data = observe(block, query.dtype)
    if not len(data.key):
        return part
    point = arrays.as_tensor(query[rows])
    pooled = pool_all(point, data, kernel, tolerance=tolerance)
    part.mean[rows], part.log_mass[rows] = pooled.mean.numpy(), pooled.log_mass.numpy()
    far = rows[(part.log_mass[rows] < FAR) & (part.log_mass[rows] > -np.inf) & (asked.floor[rows] < FAR)]
    height = max(SCORES_AT_ONCE // len(data.key), 1)
    for start in range(0, len(far), height):
        _look_closely(part, far[start : start + height], query, data, kernel)
    return part


def ask(query: Any, summaries: Sequence[Summary], kernel: Kernel, dtype: np.dtype) -> Asked:
    """Check a block of queries, and see what is certain for them."""
    query = np.asarray(query, dtype=dtype)
    if not np.isfinite(query).all():
        raise RegardError(
            "X", got="NaN or infinity", needed="finite numbers", repair="Drop or fill the missing rows first."
        )
    return Asked(query, certain(query, summaries, kernel))


def join(parts: list[Part]) -> Part:
    """The exact union of pools of the same queries over disjoint keys (`regard.merge`)."""
    masses = np.stack([part.peak + part.log_mass for part in parts])
    peaks = np.stack([part.peak for part in parts])
    peak = np.take_along_axis(peaks, masses.argmax(0)[np.newaxis], 0)[0]
    joined = merge(
        [Attended(torch.tensor(part.mean), torch.tensor((part.peak - peak) + part.log_mass)) for part in parts]
    )
    return Part(joined.output.numpy(), joined.log_mass.numpy(), peak)


def _rows(data: Observations, rows: Tensor) -> Observations:
    return Observations(data.key[rows], data.value[rows], None if data.weight is None else data.weight[rows])


def _look_closely(part: Part, rows: np.ndarray, queries: np.ndarray, data: Observations, kernel: Kernel) -> None:
    """Write rows of a part again, relative to the best score of each.

    Weights are pooled as values are: added to a score of -1e12, the logarithm of a weight would be lost.
    """
    query, key, value = torch.tensor(queries[rows]).double(), data.key.double(), data.value.double()
    weight = torch.ones_like(key[:, :1]) if data.weight is None else data.weight.double().unsqueeze(-1)
    score = as_score(kernel)
    peak = inspect(query, key, value, score=score).scores().amax(-1)
    record = inspect(query, key, torch.cat([weight * value, weight], -1), score=score, bias=-peak.unsqueeze(-1))
    mass = record.output[:, -1]
    part.mean[rows] = (record.output[:, :-1] / mass.unsqueeze(-1)).numpy()
    part.log_mass[rows] = (record.log_mass + mass.log()).numpy()
    part.peak[rows] = peak.numpy()
