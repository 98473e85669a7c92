"""Leave-one-out at many widths in one call.

A scan of a few thousand rows is bound by the number of calls, not by their work. Wide Gaussians share one grid of
nodes. For all others copies of the data stand side by side on one line, each in units of its width, and each further
from the next than it is long, so that no row has its nearest key, or any mass, in another copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.regression.criteria import Judgement
from regard.regression.leave_out import mean_of_others
from regard.regression.smoother import Smoother
from regard.regression.sums import Kernel, Observations, grid, pool

# Widths between two copies, besides their lengths: a Gaussian that far away is 0.
GAP = 60.0
# A scan says where to look; what is found there is judged again.
TOLERANCE = 1e-8
# Rows of all copies in one call: more of them leave the cache, and gain nothing.
MOST_ROWS = 2**13
# Predictions of all rows at all widths on one grid: a few temporaries of 16 MiB.
MOST_NUMBERS = 2**21


def suits(smoother: Smoother, criterion: str, exclude: int) -> bool:
    """Whether the rows are numbers, pooled by local means, each leaving out itself only."""
    return criterion == "loo" and exclude == 0 and smoother.degree == 0 and smoother.data.key.shape[-1] == 1


def judge(smoother: Smoother, widths: Sequence[float]) -> list[Judgement]:
    """The criterion of leave-one-out at each width, to the tolerance of a scan."""
    found = dict(_judge_on_grid(smoother, widths)) if smoother.kernel == "gaussian" else {}
    left = [width for width in widths if width not in found]
    found.update(zip(left, _judge_copies(smoother, left), strict=True))
    return [found[width] for width in widths]


def _judge_on_grid(smoother: Smoother, widths: Sequence[float]) -> Iterator[tuple[float, Judgement]]:
    """Those of the widths that are wide enough for a grid."""
    at_once = max(MOST_NUMBERS // smoother.data.value.numel(), 1)
    for start in range(0, len(widths), at_once):
        part = widths[start : start + at_once]
        mean, sure = grid.pool_others(smoother.data, part)
        errors = (smoother.data.value.double() - mean).square_()
        for width, error, is_sure in zip(part, errors, sure, strict=True):
            if is_sure:
                yield width, Judgement(smoother.average(error).mean())


def _judge_copies(smoother: Smoother, widths: Sequence[float]) -> list[Judgement]:
    if not widths:
        return []
    # Copies of sorted rows stand in the order of their line, which then needs no sorting.
    key, value, weight = smoother.data
    order = key[:, 0].argsort()
    ordered = Observations(key[order], value[order], None if weight is None else weight[order])
    smoother = replace(smoother, data=ordered)
    at_once = max(MOST_ROWS // len(smoother.data.key), 1)
    parts = [widths[start : start + at_once] for start in range(0, len(widths), at_once)]
    return [judgement for part in parts for judgement in _judge_together(smoother, part)]


def _judge_together(smoother: Smoother, widths: Sequence[float]) -> list[Judgement]:
    (key, value, weight), copies = smoother.data, len(widths)
    line = _line(key[:, 0].double(), torch.tensor(widths, dtype=torch.float64, device=key.device))
    whole = Observations(
        line.reshape(-1, 1), value.double().repeat(copies, 1), None if weight is None else _repeat(weight, copies)
    )
    pooled = pool(whole.key, whole, Kernel(smoother.kernel, 1.0), exclude=0, tolerance=TOLERANCE)
    mean = pooled.mean.unflatten(0, (copies, -1))
    alone = pooled.log_mass.isneginf().unflatten(0, (copies, -1))
    counts = alone.sum(-1).tolist()
    if any(counts):
        mean = torch.where(alone.unsqueeze(-1), mean_of_others(smoother, 0).double(), mean)
    errors = (value.double() - mean).square()
    return [Judgement(smoother.average(error).mean(), count) for error, count in zip(errors, counts, strict=True)]


def _line(key: Tensor, width: Tensor) -> Tensor:
    """(widths, rows): the keys in units of each width, one copy after the other."""
    low = key.min()
    length = (key.max() - low) / width
    longer = torch.maximum(length[:-1], length[1:])
    start = torch.cat([length.new_zeros(1), (length[:-1] + longer + GAP).cumsum(0)])
    return (key - low) / width.unsqueeze(-1) + start.unsqueeze(-1)


def _repeat(weight: Tensor, copies: int) -> Tensor:
    return weight.double().repeat(copies)
