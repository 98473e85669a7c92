"""The triton backend: fused GPU kernels for scores of distance (eq. 4 to 6) and additive scores (eq. 12)."""

import importlib.util
import math
import os

from torch import Tensor

from regard.backends.fused import operator
from regard.backends.fused.additive import operator as additive_operator
from regard.backends.fused.additive.plan import PROMISED
from regard.backends.fused.batches import groups_of
from regard.backends.fused.conditions import conditions_of
from regard.backends.problem import Problem
from regard.scores.forms import AdditiveForm, DistanceForm
from regard.shapes import accumulation_dtype

NAME = "triton"

INSTALLED = importlib.util.find_spec("triton") is not None
# Triton reads the same variable when it is imported, so that a later change of it means nothing.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WIDEST = 128
MOST_TOKENS = 2**30
# Masks over queries and keys that are no band are laid out for the kernels, up to this many entries.
MOST_MASKED = 2**28


def refuse(problem: Problem, log_mass: bool) -> str | None:
    """Why the kernels cannot do this, or None."""
    del log_mass
    form, value = problem.form, problem.value
    if not isinstance(form, DistanceForm | AdditiveForm):
        return "it knows scores of distance and additive scores only"
    if value.device.type != "cuda" and not INTERPRETED:
        return "its kernels run on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter"
    if not INSTALLED:
        return 'triton is not installed; pip install "regard[gpu]" brings it'
    if accumulation_dtype(value.dtype).itemsize > 4:
        return "its kernels compute in float32"
    if 0 in form.query.shape or 0 in form.key.shape or 0 in value.shape:
        return "an input is empty"
    if max(problem.queries, problem.keys) > MOST_TOKENS:
        return f"it takes up to {MOST_TOKENS} tokens"
    if problem.bias is not None and not isinstance(problem.bias, Tensor):
        return "it takes no callable bias"
    refusal = _refuse_distance(problem, form) if isinstance(form, DistanceForm) else _refuse_additive(problem)
    return refusal or _refuse_sharing(problem)


def _refuse_distance(problem: Problem, form: DistanceForm) -> str | None:
    """What speaks against dropout, bias and mask of a score of distance."""
    if form.query.shape[-1] > WIDEST:
        return f"it takes up to {WIDEST} dimensions"
    if problem.dropout:
        return "it has no dropout for scores of distance"
    if isinstance(problem.bias, Tensor) and problem.bias.shape[-2] != 1:
        return "its bias is one number for each key, the same for all queries"
    if conditions_of(problem.mask) is None:
        return "its masks are conditions on keys, one band and one gap in it"
    return None


def _refuse_additive(problem: Problem) -> str | None:
    """What speaks against tolerance, mask and dropout of an additive score."""
    if problem.tolerance is not None and problem.tolerance < PROMISED:
        return f"its tanh is exact to {PROMISED:.2g}"
    if conditions_of(problem.mask) is None and math.prod(problem.batch) * problem.queries * problem.keys > MOST_MASKED:
        return f"masks that are no conditions on keys, one band and one gap may have {MOST_MASKED} entries"
    if problem.dropout >= 1:
        return "a dropout of 1 leaves nothing to divide by"
    return None


def _refuse_sharing(problem: Problem) -> str | None:
    """Batch axes that are shared in alternation, of which the kernels have two."""
    form, mask = problem.form, problem.mask
    if form.query.ndim <= 4:
        return None
    tensors = [form.query, form.key, *problem.parameters, problem.value]
    tensors += [problem.bias] if isinstance(problem.bias, Tensor) else []
    tensors += [] if mask is None else mask.tensors()
    if len(groups_of(problem.batch, tensors)) > 2:
        return "the batch axes are shared in more than two alternating groups"
    return None


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (*batch, queries, value_dim) and log_mass (*batch, queries)."""
    problem = problem.without_padding()
    if isinstance(problem.form, AdditiveForm):
        return additive_operator.run(problem)
    return operator.run(problem)
