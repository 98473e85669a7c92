"""What a user may say as `bandwidth`, and the smoother that follows from it and the data."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression.criteria import CRITERIA
from regard.regression.neighbours import find_neighbours
from regard.regression.per_dimension import refine
from regard.regression.rules import RULES, spread, width_by_rule
from regard.regression.search import Judge, Trials, find_width
from regard.regression.smoother import Nearest, Smoother
from regard.regression.sums import Observations


class Chosen(NamedTuple):
    """The smoother with its width; where a criterion chose it, its value there, rows alone, and what was tried."""

    smoother: Smoother
    value: float | None = None
    alone: int | None = None
    trials: Trials | None = None


class Wish(NamedTuple):
    """The arguments of an estimator that concern the width."""

    bandwidth: Any
    exclude: int
    per_dimension: bool
    verbose: int


def choose(smoother: Smoother, wish: Wish) -> Chosen:
    """The smoother with the width that was wished for; its own width does not matter."""
    bandwidth, data = wish.bandwidth, smoother.data
    _check(wish, smoother)
    if isinstance(bandwidth, Nearest):
        return _nearest(smoother, wish)
    if isinstance(bandwidth, str) and bandwidth in RULES:
        return Chosen(replace(smoother, width=_plain(width_by_rule(bandwidth, data, smoother.kernel), data)))
    if isinstance(bandwidth, str):
        found = find_width(Judge(smoother, bandwidth, wish.exclude, wish.verbose))
        if wish.per_dimension and data.key.shape[-1] > 1:
            found = refine(found, bandwidth, wish.exclude, wish.verbose)
        return Chosen(*found)
    return Chosen(replace(smoother, width=_plain(torch.as_tensor(np.asarray(bandwidth, dtype=np.float64)), data)))


def shown(smoother: Smoother) -> float | np.ndarray | Nearest:
    """The width as a user reads it: a number, an array with one per dimension, or `Nearest(k)`."""
    return smoother.width.cpu().numpy().copy() if isinstance(smoother.width, Tensor) else smoother.width


def _nearest(smoother: Smoother, wish: Wish) -> Chosen:
    """Adaptive widths, measured in standard deviations where there are several dimensions."""
    data: Observations = smoother.data
    if data.key.shape[-1] > 1:
        scale = spread(data).to(data.key.dtype)
        smoother = replace(smoother, data=data._replace(key=data.key / scale), scale=scale)
    if isinstance(wish.bandwidth.k, str):
        return Chosen(*find_neighbours(smoother, wish.bandwidth.k, wish.exclude, wish.verbose))
    return Chosen(replace(smoother, width=wish.bandwidth))


def _plain(width: Tensor, data: Observations) -> float | Tensor:
    """A number where there is one for all dimensions, else (dim,) beside the data."""
    return float(width) if width.numel() == 1 else width.to(data.key)


def _check(wish: Wish, smoother: Smoother) -> None:
    bandwidth, dim = wish.bandwidth, smoother.data.key.shape[-1]
    if isinstance(bandwidth, Nearest):
        known = True
    elif isinstance(bandwidth, str):
        known = bandwidth in RULES or bandwidth in CRITERIA
    else:
        known = _is_positive(bandwidth, dim, smoother.data.key.dtype)
    if not known:
        raise RegardError(
            "bandwidth",
            got=f"{bandwidth!r:.80}",
            needed=f"a positive number of {str(smoother.data.key.dtype).removeprefix('torch.')}, {dim} of them, "
            f"Nearest(k), or one of {', '.join([*CRITERIA, *RULES])}",
            repair='Pass bandwidth="loo" to have it chosen from the data.',
        )
    by_criterion = isinstance(bandwidth, str) and bandwidth in CRITERIA
    if wish.per_dimension and not by_criterion:
        raise RegardError(
            "per_dimension",
            got=f"True with bandwidth={bandwidth!r:.60}",
            needed=f"a criterion whose gradient can be followed: one of {', '.join(CRITERIA)}",
            repair="Pass per_dimension=False; an array given as bandwidth is per dimension already.",
        )


def _is_positive(bandwidth: object, dim: int, dtype: torch.dtype) -> bool:
    """Whether these are widths for keys of that dtype, in which they must neither vanish nor overflow."""
    try:
        numbers = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    if np.asarray(bandwidth).dtype == bool or numbers.shape not in ((), (1,), (dim,)):
        return False
    limits = torch.finfo(dtype)
    return all(limits.tiny <= number <= limits.max for number in numbers.reshape(-1))
