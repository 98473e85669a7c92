"""How an additive call is computed on a GPU, exactly or by the lift, and what error it promises."""

from typing import NamedTuple

import torch

from regard.backends.fused.additive.lift import WIDEST, lift_for
from regard.backends.problem import Problem
from regard.scores.forms import AdditiveForm
from regard.watched import is_recorded, is_watched

# Bound on the error of each tanh of an exact score and of its derivative, in units of float32's eps: a handful of
# roundings, and the exponentials' own.
EXACT_ERROR = 16.0
# What a dtype's own rounding already costs: without a tolerance, inputs that coarse may be lifted.
OWN_ROUNDING = {torch.bfloat16: 2.0**-8}
# Fewer tokens than this do not pay for their features.
LEAST_TOKENS = 128
# Pairs times hidden units below which the host, launching kernels one by one, takes longer than the GPU: there the
# exact form, which has half as many, is the faster one.
LEAST_WORK = 2**31


class Plan(NamedTuple):
    """rank: features for each hidden unit, 0 for the exact form; error: promised for each tanh and its derivative."""

    rank: int
    query_reach: float
    key_reach: float
    error: float


def plan(problem: Problem, *, gradient: bool) -> Plan:
    """The lift where the tolerance allows it and it pays, otherwise the exact form."""
    form = problem.form
    assert isinstance(form, AdditiveForm)
    exact = Plan(0, 0.0, 0.0, EXACT_ERROR * torch.finfo(torch.float32).eps)
    tolerance = OWN_ROUNDING.get(form.query.dtype) if problem.tolerance is None else problem.tolerance
    if tolerance is None or tolerance <= exact.error or _is_short(problem):
        return exact
    rank, error = _promise(*form.reach, tolerance, gradient)
    if not rank or rank * form.query.shape[-1] > WIDEST:
        return exact
    return Plan(rank, *form.reach, error)


def _is_short(problem: Problem) -> bool:
    """Whether the exact form is done sooner."""
    if min(problem.queries, problem.keys) < LEAST_TOKENS:
        return True
    return problem.work < LEAST_WORK and (is_watched() or not is_recorded(problem.value.device))


def _promise(query_reach: float, key_reach: float, tolerance: float, gradient: bool) -> tuple[int, float]:
    """Rank and error of the lift that keeps a tolerance, 0 and 0 where there is none."""
    lift = lift_for(query_reach, key_reach, tolerance, gradient)
    if lift is None:
        return 0, 0.0
    return lift.rank, max(lift.value_error, lift.slope_error) if gradient else lift.value_error


# A compiler need not look inside. torch.compiler.assume_constant_result does the same, and loads the compiler for it.
setattr(_promise, "_dynamo_marked_constant", True)  # noqa: B010 - a function has no such attribute to a type checker
