"""What is answered where no key lies in the window of a compact kernel."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import hat
from regard.regression.nearest import Nearest
from regard.regression.smoother import Smoother
from regard.regression.warning_kinds import EmptyWindowWarning

POLICIES = ("nan", "nearest", "mean", "raise")

# A Gaussian this much narrower than the window gives all its weight to the nearest keys.
NARROW = 1e-9


def fill(mean: Tensor, empty: Tensor, query: Tensor, smoother: Smoother, policy: str) -> Tensor:
    """mean (queries, outputs) with an answer in the rows where `empty` (queries,) is True."""
    rows = empty.nonzero().flatten()
    if not len(rows):
        return mean
    mean = mean.clone()
    if policy == "nearest" and query.shape[-1] > 1 and isinstance(smoother, Smoother):
        for block in hat.blocks(smoother, query[rows]):
            mean[rows[block]] = _shares_of_nearest(query[rows[block]], smoother) @ smoother.data.value
    elif policy == "nearest":  # on a line the sums are fast, and all there is of data on several machines
        mean[rows] = _narrow(query[rows], smoother).pool(query[rows]).mean
    else:
        mean[rows] = smoother.overall_mean() if policy == "mean" else torch.nan
    return mean


def fill_weights(weight: Tensor, query: Tensor, smoother: Smoother, policy: str) -> Tensor:
    """The same for rows of the hat matrix (queries, keys), so that they still give the answer."""
    rows = (weight == 0).all(-1).nonzero().flatten()
    if not len(rows):
        return weight
    weight = weight.clone()
    if policy == "nearest":
        for block in hat.blocks(smoother, query[rows]):
            weight[rows[block]] = _shares_of_nearest(query[rows[block]], smoother)
    elif policy == "mean":
        share = torch.ones_like(weight[0]) if smoother.data.weight is None else smoother.data.weight
        weight[rows] = share / share.sum()
    else:
        weight[rows] = torch.nan
    return weight


def tell(empty: int, queries: int, policy: str) -> None:
    """Warn or raise, once a call, where the policy says so."""
    if not empty or policy not in ("nan", "raise"):
        return
    found = f"{empty} of {queries} queries have no observation within the bandwidth"
    if policy == "nan":
        warnings.warn(
            f'{found}: the answer there is NaN. Pass empty="nearest" or empty="mean", or a wider bandwidth.',
            EmptyWindowWarning,
            stacklevel=4,
        )
        return
    raise RegardError(
        "X",
        got=found,
        needed='an observation in every window, since empty="raise"',
        repair='Widen the bandwidth, or pass empty="nan", "nearest" or "mean".',
    )


def check_policy(policy: object, allowed: tuple[str, ...]) -> None:
    """Refuse an unknown policy."""
    if policy not in allowed:
        raise RegardError(
            "empty",
            got=repr(policy),
            needed=f"one of {', '.join(map(repr, allowed))}",
            repair="Say what a query without an observation in its window is answered.",
        )


def _shares_of_nearest(query: Tensor, smoother: Smoother) -> Tensor:
    """(queries, keys): all weight on the nearest key, shared by those that tie as their own weights are."""
    data, width = smoother.data, _width(query, smoother)
    width = width.unsqueeze(1) if isinstance(width, Tensor) and width.ndim == 2 else width
    squared = ((query.unsqueeze(1) - data.key) / width).square().sum(-1)
    share = (squared == squared.amin(-1, keepdim=True)).to(data.value.dtype)
    share = share if data.weight is None else share * data.weight
    return share / share.sum(-1, keepdim=True)


def _narrow(query: Tensor, smoother: Smoother) -> Smoother:
    """The same data under so narrow a Gaussian that only the nearest key counts."""
    return replace(smoother, kernel="gaussian", width=_width(query, smoother) * NARROW, degree=0)


def _width(query: Tensor, smoother: Smoother) -> float | Tensor:
    return smoother.kernel_at(query).width if isinstance(smoother.width, Nearest) else smoother.width
