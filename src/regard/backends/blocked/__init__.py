"""The blocked backend: tiles and online softmax on any device, memory linear in tokens in both directions."""

from torch import Tensor

from regard.backends.blocked import checkpointed, operator
from regard.backends.problem import Problem
from regard.scores.forms import CallableForm

NAME = "blocked"


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """Blocks run everything that is not empty."""
    del log_mass
    if 0 in problem.form.query.shape or 0 in problem.form.key.shape or 0 in problem.value.shape:
        return "an input is empty"
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    problem = problem.without_padding()
    if isinstance(problem.form, CallableForm) or callable(problem.bias):
        return checkpointed.run(problem)
    return operator.run(problem)
