"""Does a backend agree with the reference? One function, asked by the agreement test and by the saboteurs.

The reference in float64 is the truth, its error in the dtype under test is the yardstick (tests/bounds.py).
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from tests import bounds
from tests.contracts.cases import BATCH, BIASES, HEADS, MASKS, POSITIONED, SCORES, SETTINGS
from torch import Tensor

import regard
from regard.backends import choice
from regard.backends.blocked.additive import TANH_ERROR
from regard.shapes import accumulation_dtype

VALUE_DIM = 5
FEW = 8
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
    draw: int = 0

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
    found = run(case, backend, case.dtype)
    allowances, extra = bands(case), identity_bounds(case, backend)
    wrong = []
    for name, right in exact(case).items():
        dtype = accumulation_dtype(case.dtype) if name == "log_mass" else case.dtype
        allowed = allowances[name] + extra.get(name, 0.0)
        measured = bounds.error(found[name], right)
        if not measured <= allowed:
            wrong.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
        if found[name].dtype != dtype:
            wrong.append(f"{name}: {found[name].dtype} instead of {dtype}")
    return wrong


def run(case: Case, backend: str, dtype: torch.dtype) -> Results:
    """Output, log_mass where asked for, and every gradient, by one backend computing in `dtype`."""
    call = build(case, dtype)
    arguments = (call.query, call.key, call.value, call.score, call.mask)
    with watched() as ran:
        if case.log_mass:
            record = regard.inspect(*arguments, bias=call.bias, backend=backend)
            outputs, cotangents = [record.output, record.log_mass], [call.grad_output, call.grad_log_mass]
        else:
            outputs = [regard.attend(*arguments, bias=call.bias, backend=backend)]
            cotangents = [call.grad_output]
    assert ran == [backend], f"asked for {backend}, ran {ran}"
    leaves = {name: leaf for name, leaf in call.leaves.items() if leaf.requires_grad}
    # A boxcar without bias has a log_mass that depends on nothing: the reference knows, blocked says 0.
    known = [(x, c) for x, c in zip(outputs, cotangents, strict=True) if x.requires_grad]
    differentiable, cotangents = zip(*known, strict=True)
    gradients = torch.autograd.grad(
        differentiable, list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True
    )
    names = ("output", "log_mass")[: len(outputs)]
    return dict(zip((*names, *leaves), (*(x.detach() for x in outputs), *gradients), strict=True))


def build(case: Case, dtype: torch.dtype) -> Call:
    """The tensors of a case, rounded to its own dtype and then given in `dtype`."""
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, case.score + case.mask)) + 10_000 * case.draw)
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
        grad_output = torch.randn(*BATCH, case.queries, VALUE_DIM, dtype=torch.float64)
        grad_log_mass = torch.randn(*BATCH, case.queries, dtype=torch.float64)

    def rounded(tensor: Tensor, own: torch.dtype, then: torch.dtype) -> Tensor:
        return tensor.to(own).to(then)

    query, key, value = (rounded(x, case.dtype, dtype).requires_grad_() for x in (query, key, value))
    if bias is not None:
        # scaled_dot_product_attention has no gradient for a bias, so that backend is asked for none.
        bias = rounded(bias, case.dtype, dtype).requires_grad_(case.log_mass)
    score = copy.deepcopy(score).to(case.dtype).to(dtype)
    accumulated = accumulation_dtype(case.dtype), accumulation_dtype(dtype)
    return Call(
        query, key, value, score, mask, allowed, bias,
        rounded(grad_output, case.dtype, dtype), rounded(grad_log_mass, *accumulated),
    )  # fmt: skip


@cache
def exact(case: Case) -> Results:
    """The reference in float64, on the case's rounded inputs."""
    return run(case, "reference", torch.float64)


@cache
def bands(case: Case) -> dict[str, float]:
    """The error allowed to any backend, from the error that the reference makes itself in the case's dtype."""
    dtypes = {"log_mass": accumulation_dtype(case.dtype)}
    errors, draws = own_errors(case), [exact(case._replace(draw=draw)) for draw in range(draws_of(case))]
    return {
        name: bounds.band(torch.stack([drawn[name] for drawn in draws]), error, dtypes.get(name, case.dtype))
        for name, error in errors.items()
    }


@cache
def own_errors(case: Case) -> dict[str, float]:
    """The error of the reference in the case's dtype against itself in float64.

    In float64 it is the truth and would have none: there it counts as that of float32, scaled to float64.
    """
    if case.dtype == torch.float64:
        ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        return {name: ratio * error for name, error in own_errors(case._replace(dtype=torch.float32)).items()}
    worst: dict[str, float] = {}
    for draw in range(draws_of(case)):
        truth = exact(case._replace(draw=draw))
        found = run(case._replace(draw=draw), "reference", case.dtype)
        for name, right in truth.items():
            worst[name] = max(worst.get(name, 0.0), bounds.error(found[name], right))
    return worst


def draws_of(case: Case) -> int:
    """A bandwidth has one gradient: a max norm over one number measures luck, so it is drawn several times."""
    return 5 if any(p.numel() < FEW for p in make_score(case).parameters()) else 1


def make_score(case: Case) -> regard.scores.Score:
    """The score of a case."""
    return SCORES[case.score].build() if case.score in SCORES else POSITIONED[case.score]()


def identity_bounds(case: Case, backend: str) -> dict[str, float]:
    """What identity A adds to the band: its written bound, TANH_ERROR eps for each tanh and each of its slopes.

    A score is then off by e = TANH_ERROR eps |w|_1, a weight by the factor exp(2 e), an output by exp(2 e) - 1
    times the spread of the values; the gradients follow by the product rule.
    """
    if backend != "blocked" or not case.score.startswith("additive"):
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


@contextmanager
def watched() -> Iterator[list[str]]:
    """The names of the backends that run inside the block, in order."""
    ran: list[str] = []

    def watch(backend: choice.Backend) -> choice.Backend:
        def recorded(problem):
            ran.append(backend.name)
            return backend.run(problem)

        return backend._replace(run=recorded)

    recording = {name: watch(backend) for name, backend in choice.BACKENDS.items()}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(choice.BACKENDS, recording))
        for name, backend in recording.items():
            stack.enter_context(mock.patch.object(choice, name.upper(), backend))
        yield ran
