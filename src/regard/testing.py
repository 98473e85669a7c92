"""Checks for new scores and backends, similar to scikit-learn's `check_estimator`.

`check_backend` compares a backend with the reference: output, log mass and every gradient. `check_score` compares a
score with the formula of one pair, and then every backend that accepts it with the reference. Both return a list of
failures, which is empty if everything is right. `dispatch_log` tells which backends run inside a block, and `limits`
changes size thresholds inside a block, so that small inputs take the code written for large ones.
"""

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from regard.attention import attend, inspect
from regard.backends import dispatch, row_blocks, sdpa, varlen
from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result
from regard.backends.blocked import chunks, memory, sweep
from regard.checks import accumulation_dtype
from regard.errors import RegardError
from regard.layers import multihead
from regard.masks import Mask
from regard.scores import Additive, Bilinear, Score
from regard.scores.names import NAMED_SCORES, ScoreLike

__all__ = ["CASES", "Case", "Inputs", "check_backend", "check_score", "dispatch_log", "limits"]

# An error is allowed up to FACTOR x (the error of the reference in the same dtype + ULPS ulp of the largest entry).
FACTOR, ULPS = 2, 4
# A gradient with fewer than FEW_NUMBERS entries is compared over DRAWS draws: the error of one entry varies at random.
FEW_NUMBERS, DRAWS = 8, 5
# Roundings behind one number of a small call in float64, compared with a formula that rounds in another order.
ROUNDINGS = 64

Results = dict[str, Tensor]


class Inputs(NamedTuple):
    """The arguments of one call in float64, with a mask or a bias if the call has one."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: ScoreLike
    mask: Mask | None = None
    bias: Tensor | None = None


class Case(NamedTuple):
    """One call that a backend is checked with.

    name: shown in failures; it also seeds the random numbers of the case. draw: makes the inputs; it is called with
    a seeded generator. dtype: what the backend computes in; inputs are rounded to it before the reference sees them.
    """

    name: str
    draw: Callable[[], Inputs]
    dtype: torch.dtype = torch.float32

    def inputs(self, dtype: torch.dtype, draw: int = 0) -> tuple[Inputs, list[Tensor]]:
        """The inputs, rounded to the dtype of the case and then given in `dtype`; cotangents of output and log mass."""
        with torch.random.fork_rng():
            torch.manual_seed(zlib.crc32(self.name.encode()) + draw)
            query, key, value, score, mask, bias = self.draw()
            tokens = ((*x.shape[:-2], 1, 1) for x in (query, key, value))
            batch, queries = torch.broadcast_shapes(*tokens)[:-2], query.shape[-2]
            grad_output = torch.randn(*batch, queries, value.shape[-1], dtype=torch.float64)
            grad_log_mass = torch.randn(*batch, queries, dtype=torch.float64)
        query, key, value = (x.to(self.dtype).to(dtype).requires_grad_() for x in (query, key, value))
        bias = None if bias is None else bias.to(self.dtype).to(dtype).requires_grad_()
        score = copy.deepcopy(score)
        score = score.to(self.dtype).to(dtype) if isinstance(score, nn.Module) else score
        grad_output = grad_output.to(self.dtype).to(dtype)
        grad_log_mass = grad_log_mass.to(accumulation_dtype(self.dtype)).to(accumulation_dtype(dtype))
        return Inputs(query, key, value, score, mask, bias), [grad_output, grad_log_mass]

    def exact(self, *, log_mass: bool = True, draw: int = 0) -> Results:
        """Output, log mass and gradients of the reference in float64, on the rounded inputs.

        log_mass: False for a backend without it; then the loss depends on the output alone, and a bias has no gradient.
        """
        return _exact(self, log_mass, draw)

    def tolerances(self, *, log_mass: bool = True) -> dict[str, float]:
        """The error allowed for each result, from the error that the reference makes in the dtype of the case."""
        return _tolerances(self, log_mass)


def check_backend(
    backend: str | Backend,
    cases: Iterable[Case] | None = None,
    *,
    allowance: Callable[[Case], Mapping[str, float]] | None = None,
) -> list[str]:
    """Compare a backend with the reference in float64.

    Args:
        backend: the name of a backend, or a new one, which is registered during the check.
        cases: what to run; `CASES` by default. A case that the backend refuses is left out; if it
            refuses every case, that is reported as a failure.
        allowance: for a backend with a promised error of its own: what a case may be off by beyond the roundings of
            its dtype, for "output", "log_mass", "query", "key", "value", "bias" and the parameters of the score.

    Returns:
        One line for each result that is wrong: output, log mass (if the backend gives it), the gradient of every input
        and parameter, and their dtypes. Empty if the backend conforms.

    >>> check_backend("blocked", CASES[:2])
    []
    """
    with _registered(backend) as name:
        failures, refusals, count = [], [], 0
        for case in CASES if cases is None else cases:
            count += 1
            try:
                log_mass = _gives_log_mass(name, case)
            except _RefusedError as refusal:
                refusals.append(str(refusal))
                continue
            found = _results(case, name, case.dtype, log_mass=log_mass)
            extra = {} if allowance is None else allowance(case)
            failures += [f"{case.name}: {line}" for line in _differences(case, found, extra)]
        if count == len(refusals):
            reason = f": {refusals[0]}" if refusals else ""
            failures.append(f"{name} runs none of the {count} cases{reason}")
    return failures


def check_score(
    score: Score,
    formula: Callable[[np.ndarray, np.ndarray], float],
    *,
    query_dim: int = 5,
    key_dim: int | None = None,
) -> list[str]:
    """Compare the reference with the formula of a score and with finite differences, and the other backends with it.

    Args:
        score: an instance of `regard.scores.Score`.
        formula: the score of one query (query_dim,) and one key (key_dim,), two float64 arrays, as a number.
        query_dim: the size of a query.
        key_dim: the size of a key; query_dim by default.

    Returns:
        One line for each disagreement: of scores, weights or output with the formula, of gradients with finite
        differences, of a saved and loaded copy with the original, and of each backend with the reference.

    >>> from regard.scores import Gaussian
    >>> check_score(Gaussian(0.5), lambda q, k: -2 * float(((q - k) ** 2).sum()))
    []
    """
    key_dim = query_dim if key_dim is None else key_dim
    with torch.random.fork_rng():
        torch.manual_seed(0)
        query, key = torch.randn(2, 4, query_dim).double(), torch.randn(2, 6, key_dim).double()
        value = torch.randn(2, 6, 3).double()
    exact = copy.deepcopy(score).double()
    failures = _formula_differences(exact, formula, query, key, value)
    failures += _derivative_differences(exact, query, key, value)
    if not _is_restored(exact, lambda: attend(query, key, value, exact)):
        failures.append("the state dict does not bring back what the score computed")

    def draw(mask: str) -> Inputs:
        tokens = 0.3 * torch.randn(2, 19, query_dim), 0.3 * torch.randn(2, 67, key_dim), torch.randn(2, 67, 5)
        return Inputs(*tokens, score, _mask(mask, 19, 67))

    kind = type(score).__name__
    cases = [Case(f"{kind}, mask {mask}", lambda mask=mask: draw(mask)) for mask in ("none", "lengths", "causal")]
    for name in dispatch.BACKENDS:
        if name != "reference" and _accepts(name, cases[0]):
            failures += [f"{name}: {line}" for line in check_backend(name, cases)]
    return failures


def _is_restored(score: Score, call: Callable[[], Tensor]) -> bool:
    """Whether a score whose numbers were changed computes the same again after its state dict is loaded."""
    with torch.no_grad():
        before, state = call(), copy.deepcopy(score.state_dict())
        for tensor in _own_tensors(score):
            tensor.mul_(1.5)
        score.load_state_dict(state)
        return torch.equal(call(), before)


def _own_tensors(score: Score) -> list[Tensor]:
    """Every floating-point tensor that a score or a module in it has as an attribute, registered or not."""
    parts = [part for module in score.modules() for part in (vars(module), module._parameters, module._buffers)]
    tensors = [value for part in parts for value in part.values() if isinstance(value, Tensor)]
    return list({id(tensor): tensor for tensor in tensors if tensor.is_floating_point()}.values())


def _accepts(backend: str, case: Case) -> bool:
    try:
        _gives_log_mass(backend, case)
    except _RefusedError:
        return False
    return True


@contextmanager
def dispatch_log() -> Iterator[list[str]]:
    """The names of the backends that run inside the block, in order.

    Logs calls of `attend`, `inspect` and the layers, and blocks of sharded calls.

    >>> with dispatch_log() as ran:
    ...     output = attend(torch.ones(3, 2), torch.ones(4, 2), torch.ones(4, 2), "gaussian")
    >>> ran
    ['reference']
    """
    ran: list[str] = []
    logged = {name: _Logged(own, ran) for name, own in dispatch.BACKENDS.items()}
    native = multihead.native_multi_head_attention

    def log_native(*arguments: Any) -> Tensor:
        ran.append("torch")
        return native(*arguments)

    with (
        mock.patch.dict(dispatch.BACKENDS, logged),
        mock.patch.object(multihead, "native_multi_head_attention", log_native),
    ):
        yield ran


class _Logged(Backend):
    """A backend that appends its name to a list when it runs."""

    def __init__(self, backend: Backend, ran: list[str]) -> None:
        self.name = backend.name
        self._backend = backend
        self._ran = ran

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        found = self._backend.plan(problem, need)
        if isinstance(found, Refusal):
            return found

        def run(problem: Problem) -> Result:
            self._ran.append(self.name)
            return found.run(problem)

        return found._replace(run=run)

    def error_bound(self, problem: Problem) -> str:
        return self._backend.error_bound(problem)


# Module and constant of each limit; the constant is a number, a tuple, or a dict by device or dtype.
_LIMITS: dict[str, tuple[object, str]] = {
    "tile_pairs": (memory, "TILE_ELEMENTS"),
    "kept_scores": (sweep, "MOST_KEPT"),
    "row_block_elements": (row_blocks, "BLOCK_ELEMENTS"),
    "row_block_queries": (row_blocks, "MIN_QUERIES"),
    "additive_chunk_elements": (chunks, "CHUNK"),
    "small_elements": (dispatch, "MAX_SMALL_ELEMENTS"),
    "small_additive_elements": (dispatch, "MAX_SMALL_ADDITIVE_ELEMENTS"),
    "few_queries": (dispatch, "MAX_FEW_QUERIES"),
    "mask_entries": (sdpa, "MAX_MASK_ENTRIES"),
    "varlen_pairs": (varlen, "MIN_PAIRS"),
    "example_pairs": (sdpa, "MIN_EXAMPLE_PAIRS"),
}


@contextmanager
def limits(**values: int) -> Iterator[None]:
    """Override size thresholds inside the block, on every device and for every dtype.

    Args:
        values: any of tile_pairs (pairs in one tile of `blocked`), kept_scores (scores that `blocked` keeps for the
            backward pass), row_block_elements and row_block_queries (blocks of queries of a callable score),
            additive_chunk_elements (pairs times hidden units at a time), small_elements and small_additive_elements
            (up to which "auto" prefers `reference`), few_queries (up to which it prefers it for larger sizes),
            mask_entries (the largest mask that `torch` materialises), varlen_pairs and example_pairs (from which padded
            batches take kernels that do not read padding).

    >>> with limits(small_elements=0, few_queries=0), dispatch_log() as ran:
    ...     output = attend(torch.ones(3, 2), torch.ones(4, 2), torch.ones(4, 2), "gaussian")
    >>> ran
    ['blocked']
    """
    unknown = sorted(values.keys() - _LIMITS.keys())
    if unknown:
        raise RegardError(
            "limits",
            got=", ".join(unknown),
            needed=f"names of limits: {', '.join(_LIMITS)}",
            repair="Remove or correct the unknown names.",
        )
    with ExitStack() as stack:
        for name, number in values.items():
            owner, constant = _LIMITS[name]
            current = getattr(owner, constant)
            if isinstance(current, dict):  # changed in place, because other modules import the same dict
                changed = mock.patch.dict(current, {key: _like(value, number) for key, value in current.items()})
            else:
                changed = mock.patch.object(owner, constant, _like(current, number))
            stack.enter_context(changed)
        yield


def _like(current: object, number: int) -> object:
    """The number, or a tuple of it as long as the current tuple."""
    return (number,) * len(current) if isinstance(current, tuple) else number


# --- One case --------------------------------------------------------------------------------------------------


def _silent_numpy() -> np.errstate:
    """No warnings of NumPy, with which Triton's interpreter computes: a GPU does not warn of log(0) either."""
    return np.errstate(all="ignore")


class _RefusedError(Exception):
    """A backend refused a case."""


def error(found: Tensor, exact: Tensor) -> float:
    """The largest difference; infinite where one is NaN, or minus infinity and the other is not."""
    found, exact = found.detach().double(), exact.detach().double()
    if found.shape != exact.shape or not torch.equal(found.isneginf(), exact.isneginf()):
        return math.inf
    largest = largest_entry(torch.where(exact.isneginf(), 0.0, found - exact))
    return math.inf if math.isnan(largest) else largest


def allowed_error(exact: Tensor, reference_error: float, dtype: torch.dtype) -> float:
    """The error allowed to a backend where the reference in the same dtype makes `reference_error`."""
    return FACTOR * (reference_error + ULPS * ulp(exact, dtype))


def ulp(exact: Tensor, dtype: torch.dtype) -> float:
    """The spacing of `dtype` at the largest finite entry."""
    largest = largest_entry(exact)
    if not largest:
        return torch.finfo(dtype).tiny
    return max(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)), torch.finfo(dtype).smallest_normal)


def largest_entry(tensor: Tensor) -> float:
    """The largest absolute value, minus infinity left out."""
    finite = tensor.detach().double()[~torch.isneginf(tensor)]
    return finite.abs().max().item() if finite.numel() else 0.0


@contextmanager
def _registered(backend: str | Backend) -> Iterator[str]:
    """The name of a backend, registered inside the block if it is new."""
    if isinstance(backend, str):
        dispatch.check_backend_name(backend)
        yield backend
    else:
        with mock.patch.dict(dispatch.BACKENDS, {backend.name: backend}):
            yield backend.name


def _gives_log_mass(backend: str, case: Case) -> bool:
    """Whether the backend computes the log mass of a case; raises `_RefusedError` if it refuses the case altogether."""
    inputs, _ = case.inputs(case.dtype)
    with torch.no_grad(), _silent_numpy():
        try:
            inspect(*inputs[:5], bias=inputs.bias, backend=backend)
        except RegardError as refusal:
            if refusal.argument != "backend":
                raise
        else:
            return True
        bias = None if inputs.bias is None else inputs.bias.detach()
        try:
            attend(*inputs[:5], bias=bias, backend=backend)
        except RegardError as refusal:
            if refusal.argument != "backend":
                raise
            raise _RefusedError(refusal.needed) from None
    return False


def _results(case: Case, backend: str, dtype: torch.dtype, draw: int = 0, *, log_mass: bool = True) -> Results:
    """Output, log mass if asked for, and every gradient, computed by a backend in `dtype`."""
    inputs, cotangents = case.inputs(dtype, draw)
    if not log_mass and inputs.bias is not None:
        # A backend without log mass is one of torch's kernels, which have no gradient for a bias.
        inputs = inputs._replace(bias=inputs.bias.detach())
    with dispatch_log() as ran, _silent_numpy():
        if log_mass:
            record = inspect(*inputs[:5], bias=inputs.bias, backend=backend)
            outputs = [record.output, record.log_mass]
        else:
            outputs = [attend(*inputs[:5], bias=inputs.bias, backend=backend)]
    if ran != [backend]:
        raise AssertionError(f"{case.name}: asked for {backend}, ran {ran}")
    leaves = dict(zip(("query", "key", "value"), inputs[:3], strict=True))
    leaves |= dict(inputs.score.named_parameters()) if isinstance(inputs.score, nn.Module) else {}
    leaves |= {} if inputs.bias is None else {"bias": inputs.bias}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    # The log mass of a boxcar depends on nothing: in the reference it has no gradient, elsewhere one of zeros.
    pairs = [(x, c) for x, c in zip(outputs, cotangents, strict=False) if x.requires_grad]
    outputs_with_gradient, cotangents = [x for x, _ in pairs], [c for _, c in pairs]
    with _silent_numpy():
        gradients = torch.autograd.grad(
            outputs_with_gradient, list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True
        )
    names = ("output", "log_mass")[: len(outputs)]
    return dict(zip((*names, *leaves), (*(x.detach() for x in outputs), *gradients), strict=True))


def _differences(case: Case, found: Results, extra: Mapping[str, float]) -> list[str]:
    """What lies outside the allowed error or has another dtype than it should; one line each."""
    log_mass, lines = "log_mass" in found, []
    exact, tolerances = case.exact(log_mass=log_mass), case.tolerances(log_mass=log_mass)
    for name, result in found.items():
        measured, allowed = error(result, exact[name]), tolerances[name] + extra.get(name, 0.0)
        if not measured <= allowed:
            lines.append(f"{name}: error {measured:.3g}, allowed {allowed:.3g}")
        dtype = accumulation_dtype(case.dtype) if name == "log_mass" else case.dtype
        if result.dtype != dtype:
            lines.append(f"{name}: {result.dtype} instead of {dtype}")
    return lines


@cache
def _exact(case: Case, log_mass: bool, draw: int = 0) -> Results:
    """`Case.exact`, computed once."""
    return _results(case, "reference", torch.float64, draw, log_mass=log_mass)


@cache
def _tolerances(case: Case, log_mass: bool) -> dict[str, float]:
    """`Case.tolerances`, computed once."""
    errors, tolerances = _reference_errors(case, log_mass), {}
    for name, own in errors.items():
        exact = torch.stack([_exact(case, log_mass, draw)[name] for draw in range(_draws(case))])
        dtype = accumulation_dtype(case.dtype) if name == "log_mass" else case.dtype
        tolerances[name] = allowed_error(exact, own, dtype)
    return tolerances


def _reference_errors(case: Case, log_mass: bool) -> dict[str, float]:
    """The largest error of the reference in the dtype of the case against itself in float64.

    In float64 it is exact by definition: there its error in float32 counts, scaled to float64.
    """
    if case.dtype == torch.float64:
        ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        single = _reference_errors(case._replace(dtype=torch.float32), log_mass)
        return {name: ratio * own for name, own in single.items()}
    worst: dict[str, float] = {}
    for draw in range(_draws(case)):
        exact = _exact(case, log_mass, draw)
        for name, found in _results(case, "reference", case.dtype, draw, log_mass=log_mass).items():
            worst[name] = max(worst.get(name, 0.0), error(found, exact[name]))
    return worst


def _draws(case: Case) -> int:
    score = case.inputs(case.dtype)[0].score
    parameters = score.parameters() if isinstance(score, nn.Module) else ()
    return DRAWS if any(parameter.numel() < FEW_NUMBERS for parameter in parameters) else 1


# --- A score and its formula -----------------------------------------------------------------------------------


def _formula_differences(
    score: Score, formula: Callable[[np.ndarray, np.ndarray], float], query: Tensor, key: Tensor, value: Tensor
) -> list[str]:
    """Scores, weights and output of the reference in float64 against the formula, pair by pair."""
    record = inspect(query, key, value, score, backend="reference")
    pairs = [
        [[formula(one, other) for other in keys] for one in queries]
        for queries, keys in zip(query.numpy(), key.numpy(), strict=True)
    ]
    scores = torch.tensor(pairs, dtype=torch.float64)
    log_mass = scores.logsumexp(-1)
    # A row without mass has weights 0.
    weights = (scores - log_mass.masked_fill(log_mass == -math.inf, 0.0).unsqueeze(-1)).exp()
    expected = {"log_mass": log_mass, "weights": weights, "output": weights @ value}
    found = {"log_mass": record.log_mass, "weights": record.weights(), "output": record.output}
    lines = []
    for name, right in expected.items():
        allowed = ROUNDINGS * torch.finfo(torch.float64).eps * max(1.0, largest_entry(right))
        measured = error(found[name], right)
        if not measured <= allowed:
            lines.append(f"{name}: error {measured:.3g} against the formula, allowed {allowed:.3g}")
    return lines


class _Call(nn.Module):
    """A call of the reference with the score as a submodule, whose parameters `functional_call` replaces."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, self.score, backend="reference")


def _derivative_differences(score: Score, query: Tensor, key: Tensor, value: Tensor) -> list[str]:
    """First derivatives of the reference against finite differences."""
    call = _Call(score)
    parameters = dict(call.named_parameters())

    def output(query: Tensor, key: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        named = dict(zip(parameters, given, strict=True))
        return torch.func.functional_call(call, named, (query, key, value))

    leaves = [x.detach().clone().requires_grad_() for x in (query, key, value, *parameters.values())]
    try:
        torch.autograd.gradcheck(output, leaves)
    except GradcheckError as failure:
        return [f"gradients differ from finite differences: {str(failure).splitlines()[0]}"]
    return []


# --- The cases of `check_backend` ------------------------------------------------------------------------------

_QUERIES, _KEYS, _BATCH = 19, 67, (2, 3)


def _mask(name: str, queries: int, keys: int) -> Mask | None:
    """The mask of that name for a batch of two; "lengths" and "keep" leave some queries without a key."""
    if name == "lengths":
        return Mask.lengths(torch.tensor([keys - 3, 0]))
    if name == "causal":
        return Mask.causal(align="lower_right")
    if name == "keep":
        matrix = torch.rand(2, 1, queries, keys) < 0.4
        matrix[..., 0, :] = False
        return Mask.keep(matrix)
    return None


def _case(name: str, make: Callable[[], Score], mask: str, dtype: torch.dtype) -> Case:
    """Two sequences with three heads, whose keys are shared by the heads; a causal mask comes with a bias."""

    def draw() -> Inputs:
        query = 0.3 * torch.randn(*_BATCH, _QUERIES, 5, dtype=torch.float64)
        key = 0.3 * torch.randn(_BATCH[0], 1, _KEYS, 5, dtype=torch.float64)
        value = torch.randn(*_BATCH, _KEYS, 3, dtype=torch.float64)
        bias = torch.randn(*_BATCH, _QUERIES, _KEYS, dtype=torch.float64) if mask == "causal" else None
        return Inputs(query, key, value, make(), _mask(mask, _QUERIES, _KEYS), bias)

    return Case(f"{name}, mask {mask}, {str(dtype).removeprefix('torch.')}", draw, dtype)


_SCORES: dict[str, Callable[[], Score]] = {
    **{name: type(score()) for name, score in NAMED_SCORES.items()},
    "bilinear": lambda: Bilinear(5, 5),
    "additive": lambda: Additive(5, 5, 7),
}

CASES: tuple[Case, ...] = tuple(
    _case(name, make, mask, dtype)
    for name, make in _SCORES.items()
    for mask in ("none", "lengths", "causal", "keep")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
)
"""Every named score with four masks in four dtypes: what `check_backend` runs if it is given no cases."""
