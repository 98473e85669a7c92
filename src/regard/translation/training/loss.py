"""What training lowers: cross entropy with smoothed labels, and the divergence of two passes (R-Drop)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.checks import accumulation_dtype
from regard.translation.vocabulary import PAD


class Loss(NamedTuple):
    """Sums over the real target tokens of a batch.

    objective: what is lowered. cross_entropy: -log p of the targets, without smoothing, for the log; no gradient.
    """

    objective: Tensor
    cross_entropy: Tensor


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Loss:
    """Cross entropy against (1 - smoothing) of the target plus smoothing spread evenly over the vocabulary.

    logits: (batch, target, vocabulary); targets: int64 (batch, target), PAD where there is none.
    """
    objective, cross_entropy = _Smoothed.apply(
        logits.to(accumulation_dtype(logits.dtype)).flatten(0, 1), targets.flatten(), smoothing
    )
    return Loss(objective, cross_entropy)


class _Smoothed(torch.autograd.Function):
    """The sums over rows of logits (rows, vocabulary), without a copy of them as log-probabilities.

    Its gradient is softmax(logits) minus the smoothed targets: one pass where autograd takes several.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        real = targets != PAD
        log_mass = logits.logsumexp(-1)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1)
        cross_entropy = (log_mass - chosen).masked_fill(~real, 0.0).sum()
        even = (log_mass - logits.mean(-1)).masked_fill(~real, 0.0).sum() if smoothing else cross_entropy
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(cross_entropy)
        return (1 - smoothing) * cross_entropy + smoothing * even, cross_entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, d_objective: Tensor, _: Tensor):  # pyrefly: ignore
        logits, targets = ctx.saved_tensors
        gradient = torch.softmax(logits, -1)
        if ctx.smoothing:
            gradient -= ctx.smoothing / logits.shape[-1]
        gradient.scatter_add_(-1, targets[:, None], gradient.new_full((len(targets), 1), ctx.smoothing - 1))
        return gradient.mul_((d_objective * (targets != PAD))[:, None]), None, None


def r_drop(logits: Tensor, targets: Tensor, smoothing: float, weight: float) -> Loss:
    """Cross entropy of two passes over the same batch, and what their distributions disagree (arXiv 2106.14448).

    logits: (2 batch, target, vocabulary), the second half from the same inputs under another dropout;
    targets: int64 (batch, target). The sums are the means over the two passes, so a weight of 1 is the paper's
    alpha of 2.
    """
    log_p, log_q = functional.log_softmax(logits.to(accumulation_dtype(logits.dtype)), -1).chunk(2)
    first, second = _smoothed(log_p, targets, smoothing), _smoothed(log_q, targets, smoothing)
    # KL(p|q) + KL(q|p) = sum (p - q)(log p - log q)
    disagreement = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    disagreement = disagreement.masked_fill(targets == PAD, 0.0).sum() / 2
    objective = (first.objective + second.objective) / 2 + weight * disagreement
    return Loss(objective, (first.cross_entropy + second.cross_entropy) / 2)


def _smoothed(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Loss:
    real = targets != PAD
    chosen = -log_probabilities.gather(-1, targets[..., None]).squeeze(-1)
    cross_entropy = chosen.masked_fill(~real, 0.0).sum()
    if not smoothing:
        return Loss(cross_entropy, cross_entropy.detach())
    even = -log_probabilities.mean(-1).masked_fill(~real, 0.0).sum()
    return Loss((1 - smoothing) * cross_entropy + smoothing * even, cross_entropy.detach())
