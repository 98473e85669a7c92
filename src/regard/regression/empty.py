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

# A Gaussian this much narrower than the window gives all its weight to the nearest key, or evenly to those that tie.
NARROW = 1e-9


def fill(mean: Tensor, empty: Tensor, query: Tensor, smoother: Smoother, policy: str) -> Tensor:
    """mean (queries, outputs) with an answer in the rows where `empty` (queries,) is True."""
    rows = empty.nonzero().flatten()
    if not len(rows):
        return mean
    mean = mean.clone()
    if policy == "nearest":
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
        weight[rows] = hat.rows(_narrow(query[rows], smoother), query[rows]).weight
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


def _narrow(query: Tensor, smoother: Smoother) -> Smoother:
    """The same data under so narrow a Gaussian that only the nearest key counts."""
    width = smoother.kernel_at(query).width if isinstance(smoother.width, Nearest) else smoother.width
    return replace(smoother, kernel="gaussian", width=width * NARROW, degree=0)
