"""The triton backend: fused GPU kernels for scores of distance, forward and backward (eq. 4 to 6)."""

import importlib.util
import os

from torch import Tensor

from regard.backends.fused import operator
from regard.backends.fused.batches import groups_of
from regard.backends.fused.conditions import conditions_of
from regard.backends.problem import Problem
from regard.scores.forms import DistanceForm
from regard.shapes import accumulation_dtype

NAME = "triton"

INSTALLED = importlib.util.find_spec("triton") is not None
# Triton reads the same variable when it is imported, so that a later change of it means nothing.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WIDEST = 128
MOST_TOKENS = 2**30


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """Why the kernels cannot do this, or None."""
    del log_mass
    form, value = problem.form, problem.value
    if not isinstance(form, DistanceForm):
        return "it knows scores of distance only"
    if value.device.type != "cuda" and not INTERPRETED:
        return "its kernels run on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter"
    if not INSTALLED:
        return "triton is not installed"
    if accumulation_dtype(value.dtype).itemsize > 4:
        return "its kernels compute in float32"
    if 0 in form.query.shape or 0 in form.key.shape or 0 in value.shape:
        return "an input is empty"
    if max(problem.queries, problem.keys) > MOST_TOKENS or form.query.shape[-1] > WIDEST:
        return f"it takes up to {WIDEST} dimensions and {MOST_TOKENS} tokens"
    return _refuse_settings(problem, form)


def _refuse_settings(problem: Problem, form: DistanceForm) -> str | None:
    """What speaks against dropout, bias, mask and the way the batch is shared."""
    bias = problem.bias
    if problem.dropout:
        return "it has no dropout"
    if bias is not None and not isinstance(bias, Tensor):
        return "it takes no callable bias"
    if bias is not None and bias.shape[-2] != 1:
        return "its bias is one number for each key, the same for all queries"
    conditions = conditions_of(problem.mask)
    if conditions is None:
        return "its masks are conditions on keys, one band and one gap in it"
    if form.query.ndim <= 4:
        return None
    tensors = [form.query, form.key, form.width, problem.value, *(x for x in (bias,) if x is not None)]
    tensors += [tensor for condition in conditions.keys for tensor in condition.tensors()]
    if len(groups_of(problem.batch, tensors)) > 2:
        return "the batch axes are shared in more than two alternating groups"
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    return operator.run(problem)
