"""Do the kernels of additive attention keep their promise? Output, log_mass and every gradient, exact or lifted.

The reference in float64 is the truth. Allowed is the band of tests/bounds.py, and on top of it what the plan promises:
an error of each tanh and of each of its derivatives, carried through softmax and the product rule.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tests import bounds
from torch import Tensor

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends.fused.additive import forward
from regard.backends.fused.additive.call import Statics, call_of
from regard.backends.fused.additive.plan import Plan, plan
from regard.scores import Additive

# Lifted products with values take TF32: each factor is cut to 10 bits.
TF32 = 2 * 2.0**-10
# ... and changes of the scores are rounded to half precision, whose subnormals end 2^40 below the largest change.
HALF = 2.0**-11 + 2.0**-40

Results = dict[str, Tensor]


class Call(NamedTuple):
    """One call, in the dtype under test; weight: (*heads, hidden), bias and weight at least in float32."""

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
        """Everything that gets a gradient."""
        named = {name: getattr(self, name) for name in ("query", "key", "value", "weight", "bias")}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to(self, dtype: torch.dtype) -> "Call":
        """The same numbers in another dtype; weight and bias never in a coarser one than float32."""
        dtypes = {"weight": wide(dtype), "bias": wide(dtype)}
        return self._replace(**{name: x.to(dtypes.get(name, dtype)) for name, x in self.leaves.items()})


def drawn(
    queries=17, keys=19, hidden=4, value_dim=2, batch=(), key_batch=None, heads=(), spread=1.0, **settings
) -> Call:  # fmt: skip
    """Normal tokens, times `spread`; weights and values of size 1; `key_batch` where keys are shared."""
    query = spread * torch.randn(*batch, queries, hidden)
    key = spread * torch.randn(*(batch if key_batch is None else key_batch), keys, hidden)
    weight = 2 * torch.randn(*heads, hidden) / hidden**0.5
    return Call(query, key, torch.randn(*batch, keys, value_dim), weight, **settings)


class Judged(NamedTuple):
    """What the reference says in float64 and in the dtype under test, and what triton says."""

    call: Call
    exact: Results
    own: Results
    found: Results

    def complaints(self) -> list[str]:
        """One line for each result outside of what is allowed."""
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
        """The error of each result relative to its size, both as the root of a sum of squares."""
        return {name: ((self.found[name] - right).norm() / right.norm()).item() for name, right in self.exact.items()}


def judged(call: Call, dtype: torch.dtype = torch.float32, *, by: Callable[..., Results] | None = None) -> Judged:
    """Run a call, its numbers rounded to the dtype, by both backends: all results, or those that `by` gives."""
    call, run = call.to(dtype), by or results
    return Judged(call, run(call, torch.float64, "reference"), run(call, dtype, "reference"), run(call, dtype))


def disagreements(call: Call, dtype: torch.dtype = torch.float32) -> list[str]:
    """What triton gets wrong. Empty when it keeps its promise."""
    return judged(call, dtype).complaints()


def pooled(call: Call, dtype: torch.dtype = torch.float32, backend: str = "triton") -> Results:
    """Output and log_mass alone, computed in `dtype`."""
    return dict(zip(("output", "log_mass"), record_of(call.to(dtype), backend), strict=True))


def results(call: Call, dtype: torch.dtype = torch.float32, backend: str = "triton") -> Results:
    """Output, log_mass and every gradient, computed in `dtype`."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in call.to(dtype).leaves.items()}
    found = record_of(call._replace(**leaves), backend)
    given = [x.to(y) for x, y in zip(cotangents(call), found, strict=True)]
    grads = torch.autograd.grad(found, list(leaves.values()), given)
    return dict(zip(("output", "log_mass", *leaves), (*(x.detach() for x in found), *grads), strict=True))


def record_of(call: Call, backend: str = "triton") -> tuple[Tensor, Tensor]:
    """Output and log_mass of a call as it is; only triton makes use of a tolerance."""
    tolerance = call.tolerance if backend == "triton" else None
    settings = {"bias": call.bias, "tolerance": tolerance, "backend": backend}
    record = regard.inspect(call.query, call.key, call.value, score_of(call), call.mask, **settings)
    return record.output, record.log_mass


def score_of(call: Call) -> Additive:
    """The score of a call, in evaluation: its weight is the call's own tensor, its reach the call's own."""
    score = Additive.of_projected(call.weight.shape[-1]).eval()
    del score.weight
    score.weight = call.weight
    score.reach.update(*call.reach)
    return score


def cotangents(call: Call) -> tuple[Tensor, Tensor]:
    """Gradients of output and log_mass, the same for every backend and dtype."""
    shape = (*batch_of(call), call.query.shape[-2])
    with torch.random.fork_rng():
        torch.manual_seed(5)
        grad_output, grad_log_mass = torch.randn(*shape, call.value.shape[-1]), torch.randn(shape)
    return grad_output.to(call.value.dtype).double(), grad_log_mass.double()


def batch_of(call: Call) -> torch.Size:
    """What the batch axes broadcast to."""
    return torch.broadcast_shapes(*(x.shape[:-2] for x in (call.query, call.key, call.value)))


def plan_of(call: Call, *, gradient: bool = True) -> Plan:
    """What the backend decides for a call."""
    options = Options(call.mask, call.bias, tolerance=call.tolerance)
    problem = prepare(call.query, call.key, call.value, score_of(call), options)
    return plan(problem, gradient=gradient)


def allowances(call: Call, *, gradient: bool = True) -> dict[str, float]:
    """What the plan's promise allows beside rounding.

    A score is off by e = error |w|_1, so a weight by the factor exp(2 e) and an output by exp(2 e) - 1 times the mean
    distance of the values from it; the gradients follow by the product rule, with an output rounded to its dtype.
    Where lifted, products and changes are rounded too.
    """
    chosen = plan_of(call, gradient=gradient)
    cut, halved = (TF32, HALF) if chosen.rank else (0.0, 0.0)
    coarse = torch.finfo(call.value.dtype).eps / 2
    call = call.to(torch.float64)
    size = call.weight.abs().unsqueeze(-2)
    e = chosen.error * size.sum(-1, keepdim=True)
    growth = torch.expm1(2 * e)
    arguments = call.query, call.key, call.value, score_of(call), call.mask
    record = regard.inspect(*arguments, bias=call.bias, backend="reference")
    weights, output, value = record.weights(), record.output, call.value
    grad, grad_log_mass = cotangents(call)
    distance = (weights.unsqueeze(-1) * (value.unsqueeze(-3) - output.unsqueeze(-2)).abs()).sum(-2)
    off = growth * distance + cut * (weights @ value.abs())
    pull = grad @ value.mT - (grad * output).sum(-1, keepdim=True) + grad_log_mass.unsqueeze(-1)
    rounded = cut * (grad.abs() @ value.abs().mT) + (grad.abs() * (off + coarse * output.abs())).sum(-1, keepdim=True)
    # A row without keys has weights 0, and so no error.
    slack = weights * (growth * pull.abs() + (1 + growth) * rounded)
    slack = slack + halved * ((weights * pull).abs() + slack)
    bent = chosen.error * (weights * pull).abs()
    # A slope of the lift errs by the largest weight's share: its factors have one scale.
    largest = size.amax(-1, keepdim=True).expand_as(size) if chosen.rank else size
    to_query = slack.sum(-1, keepdim=True) * size + bent.sum(-1, keepdim=True) * largest
    to_key = slack.sum(-2).unsqueeze(-1) * size + bent.sum(-2).unsqueeze(-1) * largest
    found = {
        "output": off,
        "log_mass": e,
        "query": to_query.sum_to_size(call.query.shape),
        "key": to_key.sum_to_size(call.key.shape),
        "value": ((growth + cut) * weights).mT @ grad.abs(),
        "weight": _summed((slack + bent).sum((-2, -1)), call.weight.shape[:-1]),
        "bias": slack if call.bias is None else _summed(slack, call.bias.shape),
    }
    return {name: tensor.max().item() for name, tensor in found.items()}


def _summed(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Summed over the axes that something of this shape is shared over."""
    return tensor.sum_to_size((1,) * (tensor.ndim - len(shape)) + tuple(shape))


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.promote_types(dtype, torch.float32)


def scores_of(call: Call, chosen: Plan) -> Tensor:
    """Scores (*batch, queries, keys) as the kernels leave them in a slab, in plain terms."""
    tensors = [
        call.query,
        call.key,
        call.weight.reshape((1,) * (call.query.ndim - call.weight.ndim) + call.weight.shape),
    ]
    statics = Statics(False, False, "", [], 0.0, *chosen[:3])
    made = call_of([*tensors, call.value], statics)
    sides = forward.sides_of(made)
    (slab,) = made.slabs()
    scores = forward.scores_of(made, sides, slab)
    if chosen.rank:
        # The lift scales its weights so that the largest lies in [1/2, 1), and leaves out what a token says alone.
        scores = scores * 2.0 ** torch.frexp(call.weight.abs().max()).exponent
        scores = scores + sides[0].alone.flatten(0, -2)[:, :, None] + sides[1].alone.flatten(0, -2)[:, None]
    return scores[:, : made.queries, : made.keys].reshape(*batch_of(call), made.queries, made.keys)


def true_scores(call: Call) -> Tensor:
    """eq. 12 in float64: (*batch, queries, keys)."""
    query, key = call.query.double().unsqueeze(-2), call.key.double().unsqueeze(-3)
    return torch.tanh(query + key) @ call.weight.double()
