"""The reference backend computes the equations with ordinary operations of torch, and stores the scores of all pairs.

It is the specification of all other backends, and the code to read first: `PairScore.scores` computes the scores,
`softmax` the weights (eq. 3), and `attention` the output (eq. 1).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.base import Backend, Need, Plan, Problem, Result, full_precision
from regard.checks import Rows, accumulation_dtype
from regard.scores.additive import LOGISTIC_ERROR, AdditivePair


class Reference(Backend):
    """The backend that runs every problem and materialises the scores of all pairs of tokens."""

    name = "reference"

    def plan(self, problem: Problem, need: Need) -> Plan:
        """Return a plan, for any problem.

        Args:
            problem: the call after preparation.
            need: what the caller needs.

        Returns:
            The plan.
        """
        is_finite = isinstance(problem.pair, AdditivePair) and problem.mask is None and problem.bias is None
        return Plan(self.name, _attention_of_finite_scores if is_finite and need == "output" else attention)

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score."""
        if not isinstance(problem.pair, AdditivePair):
            return super().error_bound(problem)
        return problem.additive_bound(LOGISTIC_ERROR * torch.finfo(accumulation_dtype(problem.pair.query.dtype)).eps)


def attention(problem: Problem, rows: Rows | None = None) -> Result:
    """Return output, log mass and weights of attention (eq. 1).

    Args:
        problem: the call after preparation.
        rows: positions of the queries; None for all queries.

    Returns:
        The result for these queries. The weights are those before dropout.
    """
    with full_precision(problem.value.device):
        weights, log_mass = softmax(masked_scores(problem, rows))
        kept_weights = functional.dropout(weights, problem.dropout) if problem.dropout else weights
        output = kept_weights @ problem.value.to(kept_weights.dtype)
    return Result(output.to(problem.value.dtype), log_mass, weights)


def _attention_of_finite_scores(problem: Problem) -> Result:
    """Return the output of attention (eq. 1 and 3) for scores above minus infinity, by torch's faster softmax."""
    with full_precision(problem.value.device):
        weights = masked_scores(problem).softmax(-1)
        weights = functional.dropout(weights, problem.dropout) if problem.dropout else weights
        output = weights @ problem.value.to(weights.dtype)
    return Result(output.to(problem.value.dtype))


def masked_scores(problem: Problem, rows: Rows | None = None) -> Tensor:
    """Return score plus bias where the mask allows a pair, and minus infinity elsewhere.

    Args:
        problem: the call after preparation.
        rows: positions of the queries; None for all queries.

    Returns:
        (*batch, rows, keys) in the accumulation dtype.
    """
    selected = slice(0, problem.queries) if rows is None else rows
    device, bias = problem.value.device, problem.bias
    allowed = None if problem.mask is None else problem.mask.tile(selected, slice(0, problem.keys), device)
    scores = problem.pair.scores(rows, allowed)
    if callable(bias):
        positions = torch.arange(problem.first_query, problem.first_query + problem.queries, device=device)
        scores = scores + bias(positions[selected], torch.arange(problem.keys, device=device)).to(scores.dtype)
    elif bias is not None:
        tile = bias if bias.shape[-2] == 1 else bias[..., selected, :]
        scores = scores + tile.to(scores.dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    num_rows = selected.stop - selected.start if isinstance(selected, slice) else selected.shape[0]
    shape = (*problem.batch, num_rows, problem.keys)
    return scores if scores.shape == shape else scores.expand(shape)


def softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of eq. 3 and the logarithm of their denominator.

    Args:
        scores: (*batch, queries, keys), minus infinity where the mask forbids a pair.

    Returns:
        Weights (*batch, queries, keys) and log mass (*batch, queries). A row of minus infinity has weights 0 and log
        mass minus infinity.
    """
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -math.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    mass = (scores - peak).exp()
    total = mass.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    log_mass = (total.log() + peak).masked_fill(empty, -math.inf)
    return mass / total, log_mass.squeeze(-1)
