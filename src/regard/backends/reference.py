"""The reference backend: the equations on all queries and keys at once. It is the specification."""

from torch import Tensor

from regard.backends import equations
from regard.backends.problem import Problem

NAME = "reference"


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """The reference runs everything."""
    del problem, log_mass
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    return equations.pool(problem.without_padding())
