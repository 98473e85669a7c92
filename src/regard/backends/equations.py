"""The equations under ordinary autograd, for all queries or for some of them, materialised.

This is the code to read first: scores by their equations, then eq. 3. The reference backend runs it whole, the
blocked backend runs it by blocks where a score or a bias is code, and `Attended` runs it for the rows asked for.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.problem import Problem
from regard.scores.forms import AdditiveForm, CallableForm, DistanceForm, DotForm, Form
from regard.shapes import accumulation_dtype, is_autocast

Rows = slice | Tensor


def full_precision(device: torch.device) -> AbstractContextManager:
    """Scores and sums accumulate in float32: autocast has done its work when the inputs were prepared."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def pool(problem: Problem, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
    """Output (*batch, rows, value_dim) and log_mass (*batch, rows) (eq. 1)."""
    weights, log_mass = softmax(scores(problem, rows))
    if problem.dropout:
        weights = functional.dropout(weights, problem.dropout)
    output = weights @ problem.value.to(weights.dtype)
    return output.to(problem.value.dtype), log_mass


def scores(problem: Problem, rows: Rows | None = None) -> Tensor:
    """Score plus bias where the mask allows, minus infinity elsewhere; (*batch, rows, keys).

    rows: which queries, as a slice or as positions; all of them by default.
    """
    rows = slice(0, problem.queries) if rows is None else rows
    keys = slice(0, problem.keys)
    device = problem.value.device
    allowed = None if problem.mask is None else problem.mask.tile(rows, keys, device)
    result = pair_scores(problem.form, rows, allowed)
    if callable(problem.bias):
        positions = torch.arange(problem.first_query, problem.first_query + problem.queries, device=device)
        tile = problem.bias(positions[rows], torch.arange(problem.keys, device=device))
        result = result + tile.to(result.dtype)
    elif problem.bias is not None:
        tile = problem.bias if problem.bias.shape[-2] == 1 else problem.bias[..., rows, :]
        result = result + tile.to(result.dtype)
    if allowed is not None:
        result = result.masked_fill(~allowed, -math.inf)
    shape = (*problem.batch, _count(rows), problem.keys)
    return result if result.shape == shape else result.expand(shape)


def _count(rows: Rows) -> int:
    """How many queries are meant; a slice has both its ends."""
    return rows.stop - rows.start if isinstance(rows, slice) else rows.shape[0]


def pair_scores(form: Form, rows: Rows, allowed: Tensor | None = None) -> Tensor:
    """The score of each pair, by its equation, in the accumulation dtype; (*batch, rows, keys).

    A pair that is not allowed may have any score: the caller forbids it afterwards.
    """
    dtype = accumulation_dtype(form.query.dtype)
    query, key = form.query[..., rows, :].to(dtype), form.key.to(dtype)
    match form:
        case DotForm(scale=scale, softcap=softcap):  # eq. 7 to 11
            result = (query @ key.mT) * scale
            return result if softcap is None else softcap * torch.tanh(result / softcap)
        case DistanceForm(width=width, link=link):  # eq. 5 and 6
            squared = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
            if allowed is not None:
                # Garbage that is forbidden may be infinitely far, and in the gradient of the width 0 * inf is NaN.
                squared = squared.masked_fill(~allowed, 0.0)
            width = width if width.shape[-2] == 1 else width[..., rows, :]
            return link.log_kernel(squared, width.to(dtype), form.query.dtype)
        case AdditiveForm(weight=weight):  # eq. 12
            hidden = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
            return _combined(hidden, weight.to(dtype))
        case CallableForm(function=function):  # eq. 3: any f
            return function(form.query[..., rows, :], form.key).to(dtype)


def _combined(hidden: Tensor, weight: Tensor) -> Tensor:
    """w' h of every pair: (*batch, rows, keys, hidden), (*batch, 1, hidden) -> (*batch, rows, keys)."""
    if weight.numel() == weight.shape[-1]:  # one w for all: one product forward, and one backward
        return hidden @ weight.flatten()
    return (hidden @ weight.unsqueeze(-1)).squeeze(-1)


def softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of eq. 3 and the logarithm of their denominator; a row without mass has weights 0.

    scores: (*batch, queries, keys) -> (*batch, queries, keys), (*batch, queries).
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
