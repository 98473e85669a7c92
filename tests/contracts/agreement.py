"""Compare a backend with the reference on one case.

The reference in float64 is the truth, its error in the dtype under test is the yardstick (tests/bounds.py).
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from tests.contracts.cases import BATCH, BIASES, HEADS, MASKS, POSITIONED, SCORES, SETTINGS
from torch import Tensor

import regard
from regard import testing
from regard.backends.blocked.additive import TANH_ERROR
from regard.checks import accumulation_dtype

VALUE_DIM = 5
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Results = dict[str, Tensor]


class Case(NamedTuple):
    """One call of attention: the names of its score and mask, its dtype and sizes."""

    score: str
    mask: str = "none"
    dtype: torch.dtype = torch.float32
    queries: int = 19
    keys: int = 67
    log_mass: bool = True
    large: bool = False  # the first tokens are so long that identity A cannot take them
    shared: bool = False  # heads share their queries, as they always share their keys

    def __str__(self) -> str:
        """A name for a test."""
        dtype = str(self.dtype).removeprefix("torch.")
        variants = "-large" * self.large + "-shared" * self.shared
        return f"{self.score}-{self.mask}-{dtype}-{self.queries}x{self.keys}{variants}"


class Call(NamedTuple):
    """The tensors and objects of a case, in some dtype."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: regard.scores.Score
    mask: regard.Mask | None
    allowed: np.ndarray | None
    bias: Tensor | None
    grad_output: Tensor
    grad_log_mass: Tensor

    @property
    def leaves(self) -> dict[str, Tensor]:
        """Everything that gets a gradient."""
        tensors = {"query": self.query, "key": self.key, "value": self.value, **dict(self.score.named_parameters())}
        return tensors if self.bias is None else {**tensors, "bias": self.bias}


def disagreements(case: Case, backend: str) -> list[str]:
    """What a backend gets wrong: one line for each result outside its band. Empty when it agrees."""
    return testing.check_backend(backend, [public(case)], allowance=lambda _: identity_bounds(case, backend))


@cache
def public(case: Case) -> testing.Case:
    """The case as `regard.testing` takes it."""
    name = f"{case.score}-{case.mask}-{case.queries}x{case.keys}{'-large' * case.large}{'-shared' * case.shared}"
    return testing.Case(name, lambda: _drawn(case)[0], case.dtype)


def _drawn(case: Case) -> tuple[testing.Inputs, np.ndarray | None]:
    """The inputs of a case, drawn by torch's generator, and what its mask allows."""
    dims = (SCORES[case.score].query_dim, SCORES[case.score].key_dim) if case.score in SCORES else (6, 6)
    query = 0.2 * torch.randn(BATCH[0], 1 if case.shared else HEADS, case.queries, dims[0], dtype=torch.float64)
    key = 0.2 * torch.randn(BATCH[0], 1, case.keys, dims[1], dtype=torch.float64)
    if case.large:
        query[..., :7, :] *= 200
        key[..., :11, :] *= 200
    value = torch.randn(*BATCH, case.keys, VALUE_DIM, dtype=torch.float64)
    score = make_score(case)
    mask, allowed = MASKS[case.mask](BATCH, case.queries, case.keys)
    bias = None
    if shape := BIASES.get(SETTINGS[case.mask] or ""):
        bias = torch.randn(shape(BATCH, case.queries, case.keys), dtype=torch.float64)
    return testing.Inputs(query, key, value, score, mask, bias), allowed


def build(case: Case, dtype: torch.dtype) -> Call:
    """The tensors of a case, rounded to its own dtype and then given in `dtype`."""
    inputs, cotangents = public(case).inputs(dtype)
    bias = inputs.bias
    if bias is not None and not case.log_mass:
        bias = bias.detach()  # scaled_dot_product_attention has no gradient for a bias
    return Call(*inputs[:5], _allowed(case), bias, *cotangents)


@cache
def _allowed(case: Case) -> np.ndarray | None:
    """What the mask of a case allows, drawn from the seed of the case."""
    found = []

    def draw() -> testing.Inputs:
        inputs, allowed = _drawn(case)
        found.append(allowed)
        return inputs

    public(case)._replace(draw=draw).inputs(torch.float64)
    return found[0]


def exact(case: Case) -> Results:
    """The reference in float64, on the case's rounded inputs."""
    return public(case).exact(log_mass=case.log_mass)


def bands(case: Case) -> dict[str, float]:
    """The error allowed to any backend, from the error that the reference makes itself in the case's dtype."""
    return public(case).tolerances(log_mass=case.log_mass)


def make_score(case: Case) -> regard.scores.Score:
    """The score of a case."""
    return SCORES[case.score].build() if case.score in SCORES else POSITIONED[case.score]()


def identity_bounds(case: Case, backend: str) -> dict[str, float]:
    """What identity A adds to the band: its written bound, TANH_ERROR eps for each tanh and each of its slopes.

    The exact kernels of triton promise the same.

    A score is then off by e = TANH_ERROR eps |w|_1, a weight by the factor exp(2 e), an output by exp(2 e) - 1
    times the spread of the values; the gradients follow by the product rule.
    """
    if backend not in ("blocked", "triton") or not case.score.startswith("additive"):
        return {}
    call = build(case, torch.float64)
    score = call.score
    each = TANH_ERROR * torch.finfo(accumulation_dtype(case.dtype)).eps
    form = score.pair(score.prepare_query(call.query), score.prepare_key(call.key))
    size = form.weight.detach().abs()
    e = each * size.sum(-1, keepdim=True)
    growth = torch.expm1(2 * e)
    record = regard.inspect(call.query, call.key, call.value, score, call.mask, bias=call.bias, backend="reference")
    weights, value, output = (x.detach() for x in (record.weights(), call.value, record.output))
    spread = value.amax(-2, keepdim=True) - value.amin(-2, keepdim=True)
    grad = call.grad_output
    pull = grad @ value.mT - (grad * output).sum(-1, keepdim=True) + case.log_mass * call.grad_log_mass.unsqueeze(-1)
    lever = (grad.abs() * spread).sum(-1, keepdim=True)
    # A row without keys has weights 0, and so no error.
    slack = weights * (growth * pull.abs() + (1 + growth) * growth * lever)
    bent = slack + each * (weights * pull).abs()
    to_query, to_key = bent.sum(-1, keepdim=True) * size, bent.sum(-2).unsqueeze(-1) * size
    found = {
        "output": growth * spread,
        "log_mass": e,
        "value": (growth * weights).mT @ grad.abs(),
        "bias": slack if call.bias is None else slack.sum_to_size(_full(call.bias, slack.ndim)),
        "weight": bent.sum((-2, -1)).sum_to_size(size.shape[-3:-2] if score.weight.ndim > 1 else ()),
    }
    if score.query_weight is None:
        tokens = {"query": to_query.sum_to_size(call.query.shape), "key": to_key.sum_to_size(call.key.shape)}
        return _largest(found | tokens)
    projections = score.query_weight.detach().abs(), score.key_weight.detach().abs()
    found |= {
        "query": to_query @ projections[0],
        "key": (to_key @ projections[1]).sum_to_size(call.key.shape),
        "query_weight": (to_query.mT @ call.query.detach().abs()).sum((0, 1)),
        "key_weight": (to_key.mT @ call.key.detach().abs()).sum((0, 1)),
    }
    return _largest(found)


def _full(tensor: Tensor, rank: int) -> tuple[int, ...]:
    return (1,) * (rank - tensor.ndim) + tuple(tensor.shape)


def _largest(tensors: dict[str, Tensor]) -> dict[str, float]:
    return {name: tensor.max().item() for name, tensor in tensors.items()}
