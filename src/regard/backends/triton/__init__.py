"""The backend "triton": GPU kernels for distance scores (eq. 4 to 6) and additive scores (eq. 12).

This module does not import Triton; the modules with kernels are imported by the first call that runs one.
"""

import importlib.util
import math

import torch
from torch import Tensor

from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result, full_precision
from regard.backends.triton import additive, distance
from regard.backends.triton.launch import INTERPRETED, kernel_mask_of
from regard.checks import accumulation_dtype, has_empty_input, needs_grad
from regard.scores.additive import AdditivePair
from regard.scores.distance import DistancePair

INSTALLED = importlib.util.find_spec("triton") is not None
# Largest number of dimensions of a query or key of a distance score.
MAX_DIM = 128
# Largest number of queries or keys.
MAX_TOKENS = 2**30
# Largest number of entries of a mask that is materialised, because it is not made of key masks and one band.
MAX_MASK_ENTRIES = 2**28


class Triton(Backend):
    """Runs distance and additive scores on a GPU."""

    name = "triton"

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Return a plan, or a refusal for what the kernels do not support."""
        reason = _refusal(problem, need)
        return Plan(self.name, _run) if reason is None else self.refuse(reason)

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score, and for a low-rank expansion its rank and range."""
        pair = problem.pair
        if not isinstance(pair, AdditivePair):
            return super().error_bound(problem)
        chosen = additive.plan(problem, gradient=needs_grad(*problem.operands()))
        bound = problem.additive_bound(chosen.error)
        if not chosen.rank:
            return bound
        outliers = [
            _share_outside(tokens, limit) for tokens, limit in zip((pair.query, pair.key), pair.reach, strict=True)
        ]
        ranges = "queries up to {:g}, keys up to {:g}".format(*pair.reach)
        shares = "{:.2%} and {:.2%} of the tokens have activations beyond it, corrected one by one".format(*outliers)
        return f"{bound}; tanh as {chosen.rank} products for each hidden unit in the range of {ranges}: {shares}"


def _run(problem: Problem) -> Result:
    operator = additive.OPERATOR if isinstance(problem.pair, AdditivePair) else distance.OPERATOR
    with full_precision(problem.value.device):
        return operator.run(problem)


def _share_outside(tokens: Tensor, limit: float) -> float:
    """Return the share of tokens (*batch, tokens, hidden) with an activation outside the range."""
    return float((tokens.detach().abs().amax(-1) > limit).double().mean())


def _refusal(problem: Problem, need: Need) -> str | None:
    """Return why the kernels cannot run a problem, or None."""
    pair, value = problem.pair, problem.value
    if not isinstance(pair, DistancePair | AdditivePair):
        return "it supports distance scores and additive scores only"
    if need == "weights":
        return "it does not return weights"
    if value.device.type != "cuda" and not INTERPRETED:
        return "its kernels run on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter"
    if not INSTALLED:
        return 'triton is not installed; install it with pip install "regard[gpu]"'
    if accumulation_dtype(value.dtype) != torch.float32:
        return "its kernels compute in float32"
    if has_empty_input(pair.query, pair.key, value):
        return "an input is empty"
    if max(problem.queries, problem.keys) > MAX_TOKENS:
        return f"it supports up to {MAX_TOKENS} tokens"
    if callable(problem.bias):
        return "it does not support a callable bias"
    return _refuse_distance(problem) if isinstance(pair, DistancePair) else _refuse_additive(problem)


def _refuse_distance(problem: Problem) -> str | None:
    """Return why the kernels of distance scores cannot run a problem, or None."""
    if problem.pair.query.shape[-1] > MAX_DIM:
        return f"it supports up to {MAX_DIM} dimensions"
    if problem.dropout:
        return "it does not support dropout for distance scores"
    if isinstance(problem.bias, Tensor) and problem.bias.shape[-2] != 1:
        return "it supports a bias for each key, which all queries share, but not a bias for each pair"
    if kernel_mask_of(problem.mask) is None:
        return (
            "it supports key masks, causal masks, window masks and at most one excluded window, joined by &; "
            "this mask has another form"
        )
    return None


def _refuse_additive(problem: Problem) -> str | None:
    """Return why the kernels of additive scores cannot run a problem, or None."""
    if problem.tolerance is not None and problem.tolerance < additive.EXACT_ERROR:
        return f"the error of its tanh is up to {additive.EXACT_ERROR:.2g}"
    entries = math.prod(problem.batch) * problem.queries * problem.keys
    if entries > MAX_MASK_ENTRIES and kernel_mask_of(problem.mask) is None:
        return (
            f"a mask may have {MAX_MASK_ENTRIES} entries unless it consists of key masks, causal masks, window masks "
            "and at most one excluded window, joined by &"
        )
    if problem.dropout >= 1:
        return "it supports dropout below 1 only"
    return None
