"""What is answered where no observation is in the window of a compact kernel."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.regression import EmptyWindowWarning, hat_matrix
from regard.regression.smoother import Smoother
from regard.scores.kernels import KERNELS

POLICIES = ("nan", "nearest", "mean", "raise")

# Bandwidths to try in turn, in units of the bandwidth: a Gaussian of the first is a nearest-neighbour search; the wider
# ones are for distances whose square overflows.
WIDTHS = (1e-9, 1.0, 1e9)


def fill(mean: Tensor, empty: Tensor, query: Tensor, smoother: Smoother, policy: str) -> Tensor:
    """Return the means (queries, outputs) with an answer by the policy where `empty` (queries,)."""
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
    """Return rows of the hat matrix (queries, keys) with the weights of the policy in empty windows."""
    rows = (weight == 0).all(-1).nonzero().flatten()
    if not len(rows):
        return weight
    weight = weight.clone()
    if policy == "nearest":
        for block in hat_matrix.row_blocks(smoother.data, len(rows)):
            weight[rows[block]] = _weights_of_nearest(query[rows[block]], smoother)
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
    """Return the policy where the mass is 0: a kernel without an end tends to the nearest key far away."""
    return policy if KERNELS[kernel].is_compact else "nearest"


def check_policy(policy: object, allowed: tuple[str, ...]) -> None:
    """Refuse an unknown policy."""
    if policy not in allowed:
        raise RegardError(
            "empty",
            got=repr(policy),
            needed=f"one of {', '.join(map(repr, allowed))}",
            repair="It says what a query without an observation in its window is answered.",
        )


def _mean_of_nearest(query: Tensor, smoother: Smoother) -> Tensor:
    """Return the mean of the nearest keys, (queries, outputs).

    On a line, where sums are fast, and on Dask arrays, which have nothing else, a narrow Gaussian finds them. In
    several dimensions, and where even the distance overflows, keys in memory are compared one by one.
    """
    in_memory = isinstance(smoother, Smoother)
    mean, left = query.new_zeros(len(query), smoother.outputs), torch.arange(len(query), device=query.device)
    if query.shape[-1] == 1 or not in_memory:
        for widths in WIDTHS:
            width = smoother.width_for(query[left]) * widths
            pooled = replace(smoother, kernel="gaussian", width=width, degree=0).pool(query[left])
            mean[left] = pooled.mean
            left = left[pooled.log_mass.isneginf()]
    if not in_memory:
        mean[left] = torch.nan
    elif len(left):
        for block in hat_matrix.row_blocks(smoother.data, len(left)):
            mean[left[block]] = _weights_of_nearest(query[left[block]], smoother) @ smoother.data.value
    return mean


def _weights_of_nearest(query: Tensor, smoother: Smoother) -> Tensor:
    """Return all weight on the nearest key, shared by ties in proportion to their own weights; (queries, keys)."""
    data, width, away = smoother.data, smoother.width_for(query), query.unsqueeze(1) - smoother.data.key
    if away.shape[-1] == 1:
        distance = away.abs().squeeze(-1)
    else:
        if isinstance(width, Tensor) and width.shape[-1] > 1:  # a common factor of all dimensions would only overflow
            away /= (width / width.amax(-1, keepdim=True)).expand(len(query), -1).unsqueeze(1)
        distance = away.square_().sum(-1)
    share = (distance == distance.amin(-1, keepdim=True)).to(data.value.dtype)
    share = share if data.weight is None else share * data.weight
    return share / share.sum(-1, keepdim=True)
