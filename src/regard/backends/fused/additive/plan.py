"""How an additive call is computed on a GPU, exactly or by the lift, and what error it promises."""

from typing import NamedTuple

import torch

from regard.backends.base import Problem
from regard.backends.fused.additive.lift import WIDEST, promise_of, rank_for, sides_on
from regard.scores.additive import AdditivePair
from regard.torch_compat import in_transform

# Bound on the error of each tanh of an exact score and of its derivative, in units of float32's eps: a handful of
# roundings, and the exponentials' own.
EXACT_ERROR = 16.0
PROMISED = EXACT_ERROR * torch.finfo(torch.float32).eps
# What a dtype's own rounding already costs: without a tolerance, inputs that coarse may be lifted.
OWN_ROUNDING = {torch.bfloat16: 2.0**-8}
# Pairs times hidden units below which a call waits for the launches of its kernels: the exact form has half as many.
LEAST_WORK = 2**31
# Fewer tokens than this do not pay for their features.
LEAST_TOKENS = 128


class Plan(NamedTuple):
    """rank: features for each hidden unit, 0 for the exact form; error: promised for each tanh and its derivative."""

    rank: int
    query_reach: float
    key_reach: float
    error: float


def plan(problem: Problem, *, gradient: bool) -> Plan:
    """The lift where the tolerance allows it and it pays, otherwise the exact form."""
    pair = problem.pair
    assert isinstance(pair, AdditivePair)
    exact = Plan(0, 0.0, 0.0, PROMISED)
    tolerance = problem.tolerance
    # The launches of a compiled caller may be recorded in a CUDA graph: there a tolerance is a wish.
    is_wished = tolerance is not None and torch.compiler.is_compiling()
    if not is_wished and problem.elements < LEAST_WORK:
        return exact
    if tolerance is None:
        tolerance = OWN_ROUNDING.get(pair.query.dtype)
    if tolerance is None or tolerance <= exact.error or min(problem.queries, problem.keys) < LEAST_TOKENS:
        return exact
    rank, error = _promise(problem.value.device, *pair.reach, tolerance, gradient)
    if not rank or rank * pair.query.shape[-1] > WIDEST:
        return exact
    return Plan(rank, *pair.reach, error)


def _promise(
    device: torch.device, query_reach: float, key_reach: float, tolerance: float, gradient: bool
) -> tuple[int, float]:
    """Rank and error of the lift that keeps a tolerance, 0 and 0 where there is none."""
    rank = rank_for(query_reach, key_reach, tolerance, gradient)
    if rank is None:
        return 0, 0.0
    if not in_transform():
        # Here, and not first inside the operator: what is kept must not lie in the memory of a recorded CUDA graph.
        sides_on(device, query_reach, key_reach, rank)
    value_error, slope_error = promise_of(query_reach, key_reach, rank)
    return rank, max(value_error, slope_error) if gradient else value_error


# A compiler need not look inside. torch.compiler.assume_constant_result does the same, and loads the compiler for it.
setattr(_promise, "_dynamo_marked_constant", True)  # noqa: B010 - a function has no such attribute to a type checker
