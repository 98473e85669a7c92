"""The width of a curve over blocks: a number or a rule from the summaries, or leave-one-out over all blocks.

Up to JUDGED_ROWS rows, leave-one-out collects them and searches in this process, as for arrays in memory. Beyond, that
many rows are drawn with a fixed seed, and each of them is predicted from ALL other rows: the criterion is the mean
squared error of these predictions. One width costs one pass over the data. A row that is judged must not see itself,
so the rows drawn are pooled here, among themselves, and every block is pooled without those that came from it.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from regard.errors import RegardError
from regard.regression import bandwidth, search
from regard.regression.distributed import tasks
from regard.regression.distributed.collections import dask_of_extra
from regard.regression.distributed.scattered import Scattered
from regard.regression.distributed.summary import join
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Observations

JUDGED_ROWS = 2**15


def choose(scattered: Scattered, wish: bandwidth.Wish) -> bandwidth.Chosen:
    """The curve with the width that was wished for; its own width does not matter."""
    _check(wish)
    if not isinstance(wish.bandwidth, str) or wish.bandwidth != "loo":
        alike = bandwidth.choose(Smoother(_twin(scattered), scattered.kernel, 1.0), wish).smoother
        return _chosen(_with_width(scattered, alike.width))
    rows = _draw(scattered)
    judged = _take(scattered, rows)
    smoother = Smoother(judged, scattered.kernel, 1.0, 0, scattered.tolerance)
    if len(judged.key) == join(scattered.summaries).rows:
        found = search.find_width(search.Judge(smoother, "loo", 0, wish.verbose))
        return _chosen(_with_width(scattered, found.smoother.width), *found[1:])
    judge = BlockJudge(replace(scattered, without=rows), smoother, wish.verbose)
    if wish.verbose:
        print(f"[regard] loo is judged on {len(judged.key)} rows of {judge.rows}, each predicted from all others")
    return _chosen(*search.find_width(judge))


class BlockJudge(search.Judge):
    """Leave-one-out of the rows that were drawn, over all blocks."""

    def __init__(self, scattered: Scattered, drawn: Smoother, verbose: int) -> None:
        """scattered: leaves out the rows drawn. drawn: these rows, in memory."""
        super().__init__(drawn, "loo", 0, verbose)
        self.scattered = scattered
        self.total = join(scattered.summaries)
        self.share = len(drawn.data.key) / self.total.rows
        if self.unit is not None:
            spread = torch.from_numpy(np.sqrt(self.total.spread))
            self.unit = torch.where(spread > 0, spread, 1.0)

    @property
    def rows(self) -> int:
        """Rows of all blocks."""
        return self.total.rows

    def at(self, place: float) -> float:
        """The criterion where the logarithm of the factor is `place`."""
        drawn = replace(self.smoother, width=self._width(place))
        data = drawn.data
        own = drawn.pool_left_out(0)
        floor = own.log_mass.double().numpy()
        among = tasks.Part(own.mean.numpy(), floor, np.zeros_like(floor))
        others = _with_width(self.scattered, drawn.width).pool_asked(tasks.Asked(data.key.numpy(), floor))
        pooled = tasks.join([among, others])
        alone = np.isneginf(pooled.log_mass)
        value, weight = data.value.double().numpy(), np.ones(len(alone))
        if data.weight is not None:
            weight = data.weight.double().numpy()
        out = np.minimum(weight, 1.0)[:, np.newaxis]
        mean_of_others = self.total.value + out * (self.total.value - value) / (self.total.weight - out)
        residual = value - np.where(alone[:, np.newaxis], mean_of_others, pooled.mean)
        return self.remember(place, float(np.average(np.square(residual), 0, weight).mean()), int(alone.sum()))

    def smoother_at(self, place: float) -> Any:
        """The curve over all blocks, none of their rows left out."""
        return replace(self.scattered, width=self._width(place), without=None)

    def range_of_places(self) -> tuple[float, float]:
        """All rows are closer to each other than those drawn."""
        low, high = super().range_of_places()
        return low + math.log(self.share) / len(self.total.key) if low < high else low, high

    def sampled(self) -> tuple[search.Judge, float]:
        """The criterion on rows drawn among those drawn, in memory."""
        if len(self.smoother.data.key) > search.SCAN_ROWS:
            few, share = super().sampled()
        else:
            few, share = search.Judge(self.smoother, self.criterion, 0, 0), 1.0
            few.unit = self.unit
        return few, share * self.share

    def _width(self, place: float) -> Any:
        return super().smoother_at(place).width


def _with_width(scattered: Scattered, width: Any) -> Scattered:
    """A number, or one per dimension; widths that adapt were refused."""
    return replace(scattered, width=width)


def _chosen(curve: Any, *found: Any) -> bandwidth.Chosen:
    """Scattered answers what an estimator asks of a Smoother."""
    return bandwidth.Chosen(curve, *found)


def _check(wish: bandwidth.Wish) -> None:
    """What would need all pairs of blocks, or a gradient through them, is refused."""
    asked = wish.bandwidth
    by_name = isinstance(asked, str) and (asked in ("aicc", "gcv") or (asked == "loo" and wish.exclude > 0))
    if by_name or wish.per_dimension or isinstance(asked, Nearest):
        raise RegardError(
            "bandwidth",
            got=f"{asked!r:.60}, exclude={wish.exclude}, per_dimension={wish.per_dimension} with Dask arrays",
            needed='a number, one per dimension, "loo", "scott" or "silverman", with exclude=0, per_dimension=False',
            repair="Choose the bandwidth on a sample in memory, and pass the number that it found.",
        )


def _twin(scattered: Scattered) -> Observations:
    """Two rows with the spread and the total weight of all, which is what a rule looks at.

    They lie around 0: around the mean of all, an offset would eat the digits of the spread.
    """
    total = join(scattered.summaries)
    apart = np.sqrt(total.spread)
    key = torch.from_numpy(np.stack([-apart, apart])).to(scattered.like.dtype)
    return Observations(key, key[:, :1], torch.full((2,), total.weight / 2, dtype=torch.float64))


def _draw(scattered: Scattered) -> tuple[np.ndarray, ...]:
    """For each block the positions of the rows that are judged."""
    ends = np.cumsum([block.rows for block in scattered.summaries])
    random = np.random.default_rng(0)
    drawn = np.sort(random.choice(ends[-1], min(JUDGED_ROWS, ends[-1]), replace=False, shuffle=False))
    starts = ends - [block.rows for block in scattered.summaries]
    return tuple(
        drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, end)] - start
        for start, end in zip(starts, ends, strict=True)
    )


def _take(scattered: Scattered, rows: tuple[np.ndarray, ...]) -> Observations:
    """These rows, here."""
    dask = dask_of_extra()
    needed = [i for i, positions in enumerate(rows) if len(positions)]
    taken = dask.compute(
        *(dask.delayed(tasks.take)(scattered.block(i), rows[i], scattered.blocks.dtype) for i in needed)
    )
    key, value, weight = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*taken, strict=True))
    return Observations(key, value, None if bool((weight == 1).all()) else weight)
