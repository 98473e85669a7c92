"""The blocked backend: tiles and online softmax on any device, memory linear in tokens in both directions."""

import torch
from torch import Tensor

from regard.backends.blocked import checkpointed, operator
from regard.backends.blocked.additive import TANH_ERROR
from regard.backends.problem import Problem
from regard.scores.forms import AdditiveForm, CallableForm
from regard.shapes import accumulation_dtype

NAME = "blocked"


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """Blocks run everything that is not empty, to their own written bound."""
    del log_mass
    if problem.tolerance is not None and isinstance(problem.form, AdditiveForm):
        promised = TANH_ERROR * torch.finfo(accumulation_dtype(problem.value.dtype)).eps
        if problem.tolerance < promised:
            return f"it promises {promised:.2g} for each tanh, not {problem.tolerance:.2g}"
    if 0 in problem.form.query.shape or 0 in problem.form.key.shape or 0 in problem.value.shape:
        return "an input is empty"
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    if isinstance(problem.form, CallableForm) or callable(problem.bias):
        return checkpointed.run(problem)
    return operator.run(problem)
