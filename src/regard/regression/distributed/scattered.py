"""The fitted curve over blocks of data that are elsewhere: what `Smoother` is for data in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression.distributed import tasks
from regard.regression.distributed.collections import Blocks, dask_of_extra
from regard.regression.distributed.reach import matters
from regard.regression.distributed.summary import Summary, join
from regard.regression.smoother import Fit
from regard.regression.sums import Kernel, Pool

# Parts joined by one task: each holds a few numbers for every query of a block.
JOINED_AT_ONCE = 8
# Numbers that go to the workers with one plan: 2^20 float64 are 8 MiB; Dask warns beyond 10.
NUMBERS_SENT = 2**20


@dataclass(frozen=True)
class Scattered:
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
        parts = [self.pool_asked(tasks.ask(block, self.summaries, self.as_kernel(), block.dtype)) for block in blocks]
        log_mass = np.concatenate([part.peak + part.log_mass for part in parts])
        mean = np.concatenate([part.mean for part in parts])
        return Pool(torch.from_numpy(mean), torch.from_numpy(log_mass).to(query.dtype))

    def fit(self, query: Tensor) -> Fit:
        """The estimate at each query."""
        pooled = self.pool(query)
        return Fit(pooled.mean, pooled.log_mass, (-pooled.log_mass).exp())

    def pool_asked(self, asked: tasks.Asked) -> tasks.Part:
        """The same of one block of queries, ready to be joined with other parts."""
        needed = [
            i
            for i, block in enumerate(self.summaries)
            if matters(asked.query, block, self.as_kernel(), asked.floor).any()
        ]
        if not needed:
            return tasks.Part.empty(len(asked.query), self.outputs, asked.query.dtype)
        (part,) = dask_of_extra().compute(self.planned(asked, needed))
        return part

    def planned(self, asked: Any, blocks: Sequence[int]) -> Any:
        """The lazy Part of Asked queries, lazy or not, over these blocks."""
        delayed = dask_of_extra().delayed
        asked, pool, kernel = delayed(asked), delayed(tasks.pool), self.as_kernel()
        return tree([pool(asked, self.block(i), self.summaries[i], kernel, self.tolerance) for i in blocks])

    def block(self, index: int) -> tasks.Block:
        """One lazy block."""
        return tasks.Block(*self.blocks.at(index), None if self.without is None else self.without[index])

    def as_kernel(self) -> Kernel:
        """The kernel with its width."""
        return Kernel(self.kernel, self.width)

    @property
    def outputs(self) -> int:
        """Columns of y."""
        return len(self.summaries[0].value)

    def total(self) -> float:
        """How many observations there are, repetitions counted."""
        return join(self.summaries).weight

    def overall_mean(self) -> Tensor:
        """(outputs,): the mean of all values."""
        return torch.as_tensor(join(self.summaries).value, device="cpu").to(self.like.dtype)


def tree(parts: list[Any]) -> Any:
    """Join lazy parts, a few at a time, until one is left."""
    joined = dask_of_extra().delayed(tasks.join)
    while len(parts) > 1:
        parts = [joined(parts[start : start + JOINED_AT_ONCE]) for start in range(0, len(parts), JOINED_AT_ONCE)]
    return parts[0]
