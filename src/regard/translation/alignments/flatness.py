"""How flat attention is: 1 while every source token weighs the same, 0 when one holds everything."""

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError

# Weights of an untrained model are this flat or flatter, whatever its score; those of a useful one are far from it.
UNIFORM = 0.98


def flatness(weights: Tensor, source_lengths: Tensor | None = None, target_lengths: Tensor | None = None) -> float:
    """The mean over target tokens of entropy / log(source tokens): 1 is uniform, 0 is one token alone.

    Sources of one token are left out, since nothing can be said of them; NaN when there are no others.

    Args:
        weights: (target, source), or (batch, target, source) with padding that weighs 0.
        source_lengths: int64 (batch,), real source tokens; without it all are.
        target_lengths: int64 (batch,), real target tokens; without it all are.

    >>> round(flatness(torch.tensor([[0.5, 0.5], [1.0, 0.0]])), 3)
    0.5
    """
    if weights.ndim not in (2, 3):
        raise RegardError(
            "weights",
            got=describe(weights),
            needed="(target, source) or (batch, target, source)",
            repair="Take one head, or the mean over heads.",
        )
    table = weights.detach().double() if weights.ndim == 3 else weights.detach().double()[None]
    batch, target, source = table.shape
    sizes = _lengths("source_lengths", source_lengths, batch, source, table)
    steps = _lengths("target_lengths", target_lengths, batch, target, table)
    entropy = torch.special.entr(table).sum(-1) / sizes.log()[:, None]  # (batch, target)
    counted = (torch.arange(target, device=table.device) < steps[:, None]) & (sizes > 1)[:, None]
    return float(entropy[counted].mean()) if bool(counted.any()) else float("nan")


def _lengths(argument: str, lengths: Tensor | None, batch: int, most: int, like: Tensor) -> Tensor:
    """float64 (batch,)."""
    if lengths is None:
        return like.new_full((batch,), float(most))
    if lengths.shape != (batch,):
        raise RegardError(
            argument,
            got=describe(lengths),
            needed=f"one length for each of {batch} sentences",
            repair="Pass them beside weights of (batch, target, source).",
        )
    return lengths.to(like)
