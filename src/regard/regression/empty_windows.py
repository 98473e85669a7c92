"""What is answered where no observation is in the window."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import EmptyWindowWarning, hat_matrix
from regard.regression.bandwidth_search import SMOOTH_KERNELS
from regard.regression.smoother import Nearest, Smoother

POLICIES = ("nan", "nearest", "mean", "raise")

# Gaussians of so many windows' width: the first gives all its weight to the nearest keys, and where a squared distance
# overflows by it, so does the next.
WIDTHS = (1e-9, 1.0, 1e9)


def fill(mean: Tensor, empty: Tensor, query: Tensor, smoother: Smoother, policy: str) -> Tensor:
    """mean (queries, outputs) with an answer in the rows where `empty` (queries,) is True."""
    rows = empty.nonzero().flatten()
    if not len(rows):
        return mean
    mean = mean.clone()
    if policy == "nearest":
        mean[rows] = _mean_of_nearest(query[rows], smoother)
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
        for block in hat_matrix.row_blocks(smoother, query[rows]):
            weight[rows[block]] = _shares_of_nearest(query[rows[block]], smoother)
    elif policy == "mean":
        share = torch.ones_like(weight[0]) if smoother.data.weight is None else smoother.data.weight
        weight[rows] = share / share.sum()
    else:
        weight[rows] = torch.nan
    return weight


def report(empty: int, queries: int, policy: str) -> None:
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


def effective_policy(kernel: str, policy: str) -> str:
    """What is done where the mass is 0: a smooth kernel has no end, and its limit far away is the nearest key."""
    return "nearest" if kernel in SMOOTH_KERNELS else policy


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
    data, width, away = smoother.data, _width(query, smoother), query.unsqueeze(1) - smoother.data.key
    if away.shape[-1] == 1:
        distance = away.abs().squeeze(-1)
    else:
        if isinstance(width, Tensor) and width.shape[-1] > 1:  # what dimensions have in common would only overflow
            away /= (width / width.amax(-1, keepdim=True)).expand(len(query), -1).unsqueeze(1)
        distance = away.square_().sum(-1)
    share = (distance == distance.amin(-1, keepdim=True)).to(data.value.dtype)
    share = share if data.weight is None else share * data.weight
    return share / share.sum(-1, keepdim=True)


def _mean_of_nearest(query: Tensor, smoother: Smoother) -> Tensor:
    """(queries, outputs): the mean of the nearest keys.

    By a narrow Gaussian on a line, where sums are fast, and of data on several machines, which have nothing else. Keys
    in memory are looked at one by one in several dimensions, and where even the distance overflows.
    """
    in_memory = isinstance(smoother, Smoother)
    mean, left = query.new_zeros(len(query), smoother.outputs), torch.arange(len(query), device=query.device)
    if query.shape[-1] == 1 or not in_memory:
        for windows in WIDTHS:
            width = _width(query[left], smoother) * windows
            pooled = replace(smoother, kernel="gaussian", width=width, degree=0).pool(query[left])
            mean[left] = pooled.mean
            left = left[pooled.log_mass.isneginf()]
    if not in_memory:
        mean[left] = torch.nan
    elif len(left):
        for block in hat_matrix.row_blocks(smoother, query[left]):
            mean[left[block]] = _shares_of_nearest(query[left[block]], smoother) @ smoother.data.value
    return mean


def _width(query: Tensor, smoother: Smoother) -> float | Tensor:
    return smoother.kernel_at(query).width if isinstance(smoother.width, Nearest) else smoother.width
