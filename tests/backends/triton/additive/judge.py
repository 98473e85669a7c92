"""Compare the kernels of additive scores, exact or lifted, with the reference in float64: all results and gradients.

The allowed error is that of tests/bounds.py and the error bound of the plan: that of each tanh and of each of its
derivatives, propagated through softmax and the product rule.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tests import bounds
from torch import Tensor

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends.base import Problem
from regard.backends.triton.additive import Plan, fold_problem, plan, prepare_scores, slabs
from regard.scores import Additive

# Products of lifted weights with values are in TF32: each factor has 10 bits.
TF32 = 2 * 2.0**-10
# The gradients of lifted scores are rounded to half precision, whose smallest number is 2^40 below the largest of them.
HALF = 2.0**-11 + 2.0**-40

Results = dict[str, Tensor]


class Call(NamedTuple):
    """One call, in the dtype under test; weight (*heads, hidden) and bias have at least float32."""

    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor
    mask: Mask | None = None
    bias: Tensor | None = None
    tolerance: float | None = None
    reach: tuple[float, float] = (2.0, 2.0)

    @property
    def leaves(self) -> Results:
        """The tensors that get a gradient, by name."""
        named = {name: getattr(self, name) for name in ("query", "key", "value", "weight", "bias")}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to(self, dtype: torch.dtype) -> "Call":
        """Return the call in another dtype; weight and bias have at least float32."""
        dtypes = {"weight": wide(dtype), "bias": wide(dtype)}
        return self._replace(**{name: x.to(dtypes.get(name, dtype)) for name, x in self.leaves.items()})


def drawn(
    queries=17, keys=19, hidden=4, value_dim=2, batch=(), key_batch=None, heads=(), spread=1.0, **settings
) -> Call:  # fmt: skip
    """Return a call with normal tokens, times `spread`; `key_batch` is the batch of the keys if they are shared."""
    query = spread * torch.randn(*batch, queries, hidden)
    key = spread * torch.randn(*(batch if key_batch is None else key_batch), keys, hidden)
    weight = 2 * torch.randn(*heads, hidden) / hidden**0.5
    return Call(query, key, torch.randn(*batch, keys, value_dim), weight, **settings)


class Judged(NamedTuple):
    """The results of the reference in float64 and in the dtype under test, and those of triton."""

    call: Call
    exact: Results
    own: Results
    found: Results

    def complaints(self) -> list[str]:
        """Return one line for each result with a larger error than allowed."""
        promised = allowances(self.call, gradient="query" in self.found)
        wrong = []
        for name, right in self.exact.items():
            found, own = self.found[name], self.own[name]
            allowed = bounds.band(right, bounds.error(own, right), found.dtype) + promised[name]
            measured = bounds.error(found, right)
            if not measured <= allowed:
                wrong.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
            if found.dtype != own.dtype:
                wrong.append(f"{name}: {found.dtype} instead of {own.dtype}")
        return wrong

    def norms(self) -> dict[str, float]:
        """Return the relative L2 error of each result."""
        return {name: ((self.found[name] - right).norm() / right.norm()).item() for name, right in self.exact.items()}


def judged(call: Call, dtype: torch.dtype = torch.float32, *, by: Callable[..., Results] | None = None) -> Judged:
    """Run a call in the dtype by both backends; `by` computes the results, by default all of them."""
    call, run = call.to(dtype), by or results
    return Judged(call, run(call, torch.float64, "reference"), run(call, dtype, "reference"), run(call, dtype))


def disagreements(call: Call, dtype: torch.dtype = torch.float32) -> list[str]:
    """Return one line for each result of triton that is wrong."""
    return judged(call, dtype).complaints()


def pooled(call: Call, dtype: torch.dtype = torch.float32, backend: str = "triton") -> Results:
    """Return output and log_mass, computed in `dtype`."""
    return dict(zip(("output", "log_mass"), record_of(call.to(dtype), backend), strict=True))


def results(call: Call, dtype: torch.dtype = torch.float32, backend: str = "triton") -> Results:
    """Return output, log_mass and all gradients, computed in `dtype`."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in call.to(dtype).leaves.items()}
    found = record_of(call._replace(**leaves), backend)
    given = [x.to(y) for x, y in zip(result_gradients(call), found, strict=True)]
    grads = torch.autograd.grad(found, list(leaves.values()), given)
    return dict(zip(("output", "log_mass", *leaves), (*(x.detach() for x in found), *grads), strict=True))


def record_of(call: Call, backend: str = "triton") -> tuple[Tensor, Tensor]:
    """Return output and log_mass of a call in its own dtypes; only triton gets its tolerance."""
    tolerance = call.tolerance if backend == "triton" else None
    settings = {"bias": call.bias, "tolerance": tolerance, "backend": backend}
    record = regard.inspect(call.query, call.key, call.value, score_of(call), call.mask, **settings)
    return record.output, record.log_mass


def score_of(call: Call) -> Additive:
    """Return the score of a call, in evaluation, with the weight and the range of the call."""
    score = Additive.of_projected(call.weight.shape[-1]).eval()
    del score.weight
    score.weight = call.weight
    score.reach.update(*call.reach)
    return score


def result_gradients(call: Call) -> tuple[Tensor, Tensor]:
    """Return gradients of output and log_mass, the same for every backend and dtype."""
    shape = (*batch_of(call), call.query.shape[-2])
    with torch.random.fork_rng():
        torch.manual_seed(5)
        d_output, d_log_mass = torch.randn(*shape, call.value.shape[-1]), torch.randn(shape)
    return d_output.to(call.value.dtype).double(), d_log_mass.double()


def batch_of(call: Call) -> torch.Size:
    """Return the batch shape that all inputs broadcast to."""
    return torch.broadcast_shapes(*(x.shape[:-2] for x in (call.query, call.key, call.value)))


def problem_of(call: Call, *, dropout: float = 0.0) -> Problem:
    """Return the problem of a call."""
    options = Options(call.mask, call.bias, dropout=dropout, tolerance=call.tolerance)
    return prepare(call.query, call.key, call.value, score_of(call), options)


def plan_of(call: Call, *, gradient: bool = True) -> Plan:
    """Return the plan of the backend for a call."""
    return plan(problem_of(call), gradient=gradient)


def allowances(call: Call, *, gradient: bool = True) -> dict[str, float]:
    """Return the largest errors that the error bound of the plan allows, by result.

    A score has an error of up to e = error * sum |w|. A weight changes by a factor of up to exp(2 e), and an output by
    exp(2 e) - 1 times the mean distance of the values from it. The gradients follow by the product rule, with an output
    rounded to its dtype. With the lift, products and gradients of scores are rounded, too.
    """
    chosen = plan_of(call, gradient=gradient)
    tf32, half = (TF32, HALF) if chosen.rank else (0.0, 0.0)
    output_rounding = torch.finfo(call.value.dtype).eps / 2
    call = call.to(torch.float64)
    size = call.weight.abs().unsqueeze(-2)
    e = chosen.error * size.sum(-1, keepdim=True)
    growth = torch.expm1(2 * e)
    arguments = call.query, call.key, call.value, score_of(call), call.mask
    record = regard.inspect(*arguments, bias=call.bias, backend="reference")
    weights, output, value = record.weights(), record.output, call.value
    d_output, d_log_mass = result_gradients(call)
    distance = (weights.unsqueeze(-1) * (value.unsqueeze(-3) - output.unsqueeze(-2)).abs()).sum(-2)
    output_error = growth * distance + tf32 * (weights @ value.abs())
    d_weights = d_output @ value.mT - (d_output * output).sum(-1, keepdim=True) + d_log_mass.unsqueeze(-1)
    rounding = tf32 * (d_output.abs() @ value.abs().mT)
    rounding = rounding + (d_output.abs() * (output_error + output_rounding * output.abs())).sum(-1, keepdim=True)
    # A row without keys has weights 0, and so no error.
    score_error = weights * (growth * d_weights.abs() + (1 + growth) * rounding)
    score_error = score_error + half * ((weights * d_weights).abs() + score_error)
    slope_error = chosen.error * (weights * d_weights).abs()
    # The error of a slope of the lift is that of the largest weight, because its factors have one scale.
    largest = size.amax(-1, keepdim=True).expand_as(size) if chosen.rank else size
    query_error = score_error.sum(-1, keepdim=True) * size + slope_error.sum(-1, keepdim=True) * largest
    key_error = score_error.sum(-2).unsqueeze(-1) * size + slope_error.sum(-2).unsqueeze(-1) * largest
    found = {
        "output": output_error,
        "log_mass": e,
        "query": query_error.sum_to_size(call.query.shape),
        "key": key_error.sum_to_size(call.key.shape),
        "value": ((growth + tf32) * weights).mT @ d_output.abs(),
        "weight": _summed((score_error + slope_error).sum((-2, -1)), call.weight.shape[:-1]),
        "bias": score_error if call.bias is None else _summed(score_error, call.bias.shape),
    }
    return {name: tensor.max().item() for name, tensor in found.items()}


def _summed(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Return the sum over the axes along which a tensor of this shape is shared."""
    return tensor.sum_to_size((1,) * (tensor.ndim - len(shape)) + tuple(shape))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype, or float32 if it is coarser."""
    return torch.promote_types(dtype, torch.float32)


def scores_of(call: Call) -> Tensor:
    """Return the scores (*batch, queries, keys) of a call with one slab, without bias and mask."""
    chosen = plan_of(call)
    folded = fold_problem(problem_of(call), chosen.rank)
    prepared = prepare_scores(folded, chosen.options)
    (slab,) = slabs(folded)
    scores = prepared.of_slab(slab)
    if chosen.rank:
        # Lifted scores are scaled so that the largest weight is in [1/2, 1), and lack the own terms.
        scores = scores * 2.0 ** torch.frexp(call.weight.abs().max()).exponent
        scores = scores + prepared.query_bias.flatten(0, -2)[:, :, None] + prepared.key_bias.flatten(0, -2)[:, None]
    return scores[:, : folded.queries, : folded.keys].reshape(*batch_of(call), folded.queries, folded.keys)


def true_scores(call: Call) -> Tensor:
    """Return the scores (*batch, queries, keys) of eq. 12 in float64."""
    query, key = call.query.double().unsqueeze(-2), call.key.double().unsqueeze(-3)
    return torch.tanh(query + key) @ call.weight.double()
