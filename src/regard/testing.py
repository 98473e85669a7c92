"""Checks for new scores and backends, similar to scikit-learn's `check_estimator`.

`check_backend` compares a backend with the reference: output, log mass and every gradient. `check_score` compares a
score with the formula of one pair, and then every backend that accepts it with the reference. Both return a list of
failures, which is empty if everything is right. `dispatch_log` records which backends run inside a block. `limits`
changes size thresholds inside a block, so that small inputs run the code for large ones.
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
from regard.backends.blocked import additive, scores, softmax
from regard.checks import accumulation_dtype
from regard.errors import RegardError
from regard.layers import native
from regard.masks import Mask
from regard.scores import Additive, Bilinear, Score
from regard.scores.names import NAMED_SCORES, ScoreLike

__all__ = ["CASES", "Case", "Inputs", "check_backend", "check_score", "dispatch_log", "limits"]

# An error may be FACTOR * (the error of the reference in the same dtype + ULPS ulp of the largest entry).
FACTOR, ULPS = 2, 4
# The error of a single entry varies at random. So if a parameter has fewer than MIN_ENTRIES entries, the error of the
# reference is the largest one over NUM_DRAWS draws of the inputs.
MIN_ENTRIES, NUM_DRAWS = 8, 5
# Number of float64 roundings by which a small call may differ from a formula that rounds in another order.
ROUNDINGS = 64

Results = dict[str, Tensor]
"""Output, log mass and gradients by name."""


class Inputs(NamedTuple):
    """The arguments of one call.

    Attributes:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim).
        value: (*batch, keys, value_dim).
        score: as for `regard.attend`.
        mask: as for `regard.attend`.
        bias: a tensor that broadcasts to (*batch, queries, keys), or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: ScoreLike
    mask: Mask | None = None
    bias: Tensor | None = None


class Case(NamedTuple):
    """One call with which a backend is checked.

    Attributes:
        name: the name in failures, from which the seed of the random numbers is computed.
        draw: returns float64 inputs, drawn by torch's global generator.
        dtype: dtype of the inputs of the backend. The reference gets the same inputs, rounded to this dtype.

    >>> case = Case("dot", lambda: Inputs(*torch.randn(3, 5, 4).double(), "dot"), torch.float16)
    >>> check_backend("torch", [case])
    []
    """

    name: str
    draw: Callable[[], Inputs]
    dtype: torch.dtype = torch.float32

    def inputs(self, dtype: torch.dtype, draw: int = 0) -> tuple[Inputs, list[Tensor]]:
        """Return the inputs, rounded to the dtype of the case, and random gradients of output and log mass.

        Args:
            dtype: dtype of the returned tensors.
            draw: number of the draw; another number gives other inputs.

        Returns:
            The inputs, and a list of two gradients: of the output (*batch, queries, value_dim) and of the log mass
            (*batch, queries).
        """
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
        """Return output, log mass and gradients that the reference computes in float64 from the rounded inputs.

        Args:
            log_mass: False for a backend that does not return the log mass. The result then has no log mass, the
                gradients are those of the output alone, and there is no gradient of a bias.
            draw: number of the draw.

        Returns:
            The tensors by name: "output", "log_mass", "query", "key", "value", "bias" and the parameters of the score.
        """
        return _exact(self, log_mass, draw)

    def tolerances(self, *, log_mass: bool = True) -> dict[str, float]:
        """Return the error allowed for each result, computed from the error of the reference in the dtype of the case.

        Args:
            log_mass: as for `exact`.

        Returns:
            The largest allowed absolute error by the names of `exact`.
        """
        return _tolerances(self, log_mass)


def check_backend(
    backend: str | Backend,
    cases: Iterable[Case] | None = None,
    *,
    allowance: Callable[[Case], Mapping[str, float]] | None = None,
) -> list[str]:
    """Compare a backend with the reference in float64.

    Args:
        backend: the name of a backend, or a new backend, which is registered during the check.
        cases: the calls to run; `CASES` by default. A case that the backend refuses is skipped. It is a failure if the
            backend refuses every case.
        allowance: for a backend that promises a larger error than roundings: returns for a case the additional error
            that is allowed, by the names of `Case.exact`.

    Returns:
        One line for each wrong result: output, log mass (if the backend returns it), the gradient of every input and
        parameter, and their dtypes. Empty if all results are right.

    Raises:
        RegardError: if there is no backend of this name, or if a case is invalid.

    >>> check_backend("blocked", CASES[:2])
    []
    """
    with _registered(backend) as name:
        failures, refusals, count = [], [], 0
        for case in CASES if cases is None else cases:
            count += 1
            try:
                log_mass = _has_log_mass(name, case)
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
    """Compare a score with its formula and with finite differences, and every backend with the reference.

    Args:
        score: an instance of `regard.scores.Score`.
        formula: takes a query (query_dim,) and a key (key_dim,), two float64 arrays, and returns their score.
        query_dim: the size of a query.
        key_dim: the size of a key; query_dim by default.

    Returns:
        One line for each failure: log mass, weights or output differ from the formula, gradients differ from finite
        differences, saving and loading the state dict changes the output, or a backend differs from the reference.
        Empty if there is none.

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
        failures.append("the output changes when the state dict is saved and loaded")

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
    """Return whether loading the state dict of a score restores its results after all its tensors were changed."""
    with torch.no_grad():
        before, state = call(), copy.deepcopy(score.state_dict())
        for tensor in _attribute_tensors(score):
            tensor.mul_(1.5)
        score.load_state_dict(state)
        return torch.equal(call(), before)


def _attribute_tensors(score: Score) -> list[Tensor]:
    """Return the floating-point tensors that are attributes of a score or of its submodules, registered or not."""
    parts = [part for module in score.modules() for part in (vars(module), module._parameters, module._buffers)]
    tensors = [value for part in parts for value in part.values() if isinstance(value, Tensor)]
    return list({id(tensor): tensor for tensor in tensors if tensor.is_floating_point()}.values())


def _accepts(backend: str, case: Case) -> bool:
    """Return whether a backend runs a case."""
    try:
        _has_log_mass(backend, case)
    except _RefusedError:
        return False
    return True


@contextmanager
def dispatch_log() -> Iterator[list[str]]:
    """Record the names of the backends that run inside the block.

    Each call of a function or a layer is recorded, and each block of a sharded call.

    Yields:
        A list, to which each backend appends its name when it runs.

    >>> with dispatch_log() as ran:
    ...     output = attend(torch.ones(3, 2), torch.ones(4, 2), torch.ones(4, 2), "laplacian")
    >>> ran
    ['reference']
    """
    ran: list[str] = []
    logged = {name: _Logged(backend, ran) for name, backend in dispatch.BACKENDS.items()}
    run_native = native.native_multi_head_attention

    def log_native(*arguments: Any) -> Tensor:
        ran.append("torch")
        return run_native(*arguments)

    with (
        mock.patch.dict(dispatch.BACKENDS, logged),
        mock.patch.object(native, "native_multi_head_attention", log_native),
    ):
        yield ran


class _Logged(Backend):
    """Wraps a backend so that it appends its name to a list when it runs."""

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


# Module and constant of each limit. The constant is a number, a tuple of numbers, or a dict of one of them.
_LIMITS: dict[str, tuple[object, str]] = {
    "tile_pairs": (scores, "TILE_PAIRS"),
    "kept_scores": (softmax, "MAX_KEPT_SCORES"),
    "row_block_elements": (row_blocks, "BLOCK_ELEMENTS"),
    "row_block_queries": (row_blocks, "MIN_QUERIES"),
    "additive_chunk_elements": (additive, "CHUNK_ELEMENTS"),
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
        **values: new values by name. `tile_pairs`: pairs in a tile of `blocked`. `kept_scores`: largest number of
            scores that `blocked` keeps for the backward pass. `row_block_elements` and `row_block_queries`: elements
            and smallest number of queries of a block of a callable score. `additive_chunk_elements`: pairs times hidden
            units that `blocked` computes at once. `small_elements` and `small_additive_elements`: largest number of
            elements for which "auto" prefers `reference`. `few_queries`: largest number of queries for which it prefers
            `reference` at larger sizes. `mask_entries`: entries of the largest mask that `torch` materialises.
            `varlen_pairs` and `example_pairs`: smallest number of pairs for which `torch` does not read the padding of
            a batch.

    Yields:
        None.

    Raises:
        RegardError: if there is no limit of a name.

    >>> with limits(small_elements=0, few_queries=0), dispatch_log() as ran:
    ...     output = attend(torch.ones(3, 2), torch.ones(4, 2), torch.ones(4, 2), "laplacian")
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
                changed = mock.patch.dict(current, {key: _repeat_like(value, number) for key, value in current.items()})
            else:
                changed = mock.patch.object(owner, constant, _repeat_like(current, number))
            stack.enter_context(changed)
        yield


def _repeat_like(current: object, number: int) -> object:
    """Return the number, or a tuple that repeats it if `current` is a tuple of this length."""
    return (number,) * len(current) if isinstance(current, tuple) else number


# --- One case --------------------------------------------------------------------------------------------------


def _silent_numpy() -> np.errstate:
    """Return a context without NumPy's warnings, such as of log(0): Triton's interpreter computes with NumPy."""
    return np.errstate(all="ignore")


class _RefusedError(Exception):
    """Raised when a backend refuses a case; the message is its reason."""


def error(found: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference of two tensors.

    Args:
        found: the tensor to check.
        exact: the expected tensor.

    Returns:
        The difference; infinity if the shapes or the positions of minus infinity differ, or if a difference is NaN.
    """
    found, exact = found.detach().double(), exact.detach().double()
    if found.shape != exact.shape or not torch.equal(found.isneginf(), exact.isneginf()):
        return math.inf
    largest = largest_entry(torch.where(exact.isneginf(), 0.0, found - exact))
    return math.inf if math.isnan(largest) else largest


def allowed_error(exact: Tensor, reference_error: float, dtype: torch.dtype) -> float:
    """Return the largest error that a backend may have.

    Args:
        exact: the result in float64.
        reference_error: the error of the reference in the dtype of the backend.
        dtype: dtype of the backend's result.

    Returns:
        FACTOR * (reference_error + ULPS * ulp).
    """
    return FACTOR * (reference_error + ULPS * ulp(exact, dtype))


def ulp(exact: Tensor, dtype: torch.dtype) -> float:
    """Return the spacing of the numbers of `dtype` at the largest entry of a tensor; see `largest_entry`."""
    largest = largest_entry(exact)
    if not largest:
        return torch.finfo(dtype).tiny
    return max(torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest)), torch.finfo(dtype).smallest_normal)


def largest_entry(tensor: Tensor) -> float:
    """Return the largest absolute value of the entries other than minus infinity; 0 if there are none."""
    finite = tensor.detach().double()[~torch.isneginf(tensor)]
    return finite.abs().max().item() if finite.numel() else 0.0


@contextmanager
def _registered(backend: str | Backend) -> Iterator[str]:
    """Yield the name of a backend; a new backend is registered inside the block."""
    if isinstance(backend, str):
        dispatch.check_backend_name(backend)
        yield backend
    else:
        with mock.patch.dict(dispatch.BACKENDS, {backend.name: backend}):
            yield backend.name


def _has_log_mass(backend: str, case: Case) -> bool:
    """Return whether a backend computes the log mass of a case; raise _RefusedError if it refuses the output, too."""
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
    """Return output, log mass (optional) and every gradient, computed by a backend in `dtype`."""
    inputs, grads = case.inputs(dtype, draw)
    if not log_mass and inputs.bias is not None:
        # The backend without log mass is `torch`, whose kernels have no gradient for a bias.
        inputs = inputs._replace(bias=inputs.bias.detach())
    with dispatch_log() as ran, _silent_numpy():
        if log_mass:
            record = inspect(*inputs[:5], bias=inputs.bias, backend=backend)
            outputs = [record.output, record.log_mass]
        else:
            outputs = [attend(*inputs[:5], bias=inputs.bias, backend=backend)]
    if ran != [backend]:
        raise AssertionError(f"{case.name}: the call has backend={backend!r}, but {ran} ran")
    leaves = dict(zip(("query", "key", "value"), inputs[:3], strict=True))
    leaves |= dict(inputs.score.named_parameters()) if isinstance(inputs.score, nn.Module) else {}
    leaves |= {} if inputs.bias is None else {"bias": inputs.bias}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    # The log mass of a boxcar is constant: in the reference it requires no gradient, elsewhere its gradient is zero.
    pairs = [(x, grad) for x, grad in zip(outputs, grads, strict=False) if x.requires_grad]
    differentiable, d_outputs = [x for x, _ in pairs], [grad for _, grad in pairs]
    with _silent_numpy():
        gradients = torch.autograd.grad(
            differentiable, list(leaves.values()), d_outputs, allow_unused=True, materialize_grads=True
        )
    names = ("output", "log_mass")[: len(outputs)]
    return dict(zip((*names, *leaves), (*(x.detach() for x in outputs), *gradients), strict=True))


def _differences(case: Case, found: Results, extra: Mapping[str, float]) -> list[str]:
    """Return one line for each result whose error is too large or whose dtype is wrong."""
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
    """Return `Case.exact`, cached."""
    return _results(case, "reference", torch.float64, draw, log_mass=log_mass)


@cache
def _tolerances(case: Case, log_mass: bool) -> dict[str, float]:
    """Return `Case.tolerances`, cached."""
    tolerances = {}
    for name, reference_error in _reference_errors(case, log_mass).items():
        exact = torch.stack([_exact(case, log_mass, draw)[name] for draw in range(_num_draws(case))])
        dtype = accumulation_dtype(case.dtype) if name == "log_mass" else case.dtype
        tolerances[name] = allowed_error(exact, reference_error, dtype)
    return tolerances


def _reference_errors(case: Case, log_mass: bool) -> dict[str, float]:
    """Return the largest errors of the reference in the dtype of the case, compared with the reference in float64.

    For a case in float64 they are the errors in float32, scaled by the ratio of the two eps.
    """
    if case.dtype == torch.float64:
        ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        errors_float32 = _reference_errors(case._replace(dtype=torch.float32), log_mass)
        return {name: ratio * error_float32 for name, error_float32 in errors_float32.items()}
    errors: dict[str, float] = {}
    for draw in range(_num_draws(case)):
        exact = _exact(case, log_mass, draw)
        for name, found in _results(case, "reference", case.dtype, draw, log_mass=log_mass).items():
            errors[name] = max(errors.get(name, 0.0), error(found, exact[name]))
    return errors


def _num_draws(case: Case) -> int:
    """Return over how many draws of the inputs the error of the reference is measured."""
    score = case.inputs(case.dtype)[0].score
    parameters = score.parameters() if isinstance(score, nn.Module) else ()
    return NUM_DRAWS if any(parameter.numel() < MIN_ENTRIES for parameter in parameters) else 1


# --- A score and its formula -----------------------------------------------------------------------------------


def _formula_differences(
    score: Score, formula: Callable[[np.ndarray, np.ndarray], float], query: Tensor, key: Tensor, value: Tensor
) -> list[str]:
    """Return where log mass, weights or output of the reference in float64 differ from those of the formula."""
    record = inspect(query, key, value, score, backend="reference")
    pairs = [
        [[formula(one_query, one_key) for one_key in keys] for one_query in queries]
        for queries, keys in zip(query.cpu().numpy(), key.cpu().numpy(), strict=True)
    ]
    scores = torch.tensor(pairs, dtype=torch.float64)
    log_mass = scores.logsumexp(-1)
    # A row without mass has weights 0.
    weights = (scores - log_mass.masked_fill(log_mass == -math.inf, 0.0).unsqueeze(-1)).exp()
    expected = {"log_mass": log_mass, "weights": weights, "output": weights @ value}
    found = {"log_mass": record.log_mass, "weights": record.weights(), "output": record.output}
    lines = []
    for name, exact in expected.items():
        allowed = ROUNDINGS * torch.finfo(torch.float64).eps * max(1.0, largest_entry(exact))
        measured = error(found[name], exact)
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
    """Return a line if first derivatives of the reference differ from finite differences."""
    call = _Call(score)
    parameters = dict(call.named_parameters())

    def output(query: Tensor, key: Tensor, value: Tensor, *new_parameters: Tensor) -> Tensor:
        by_name = dict(zip(parameters, new_parameters, strict=True))
        return torch.func.functional_call(call, by_name, (query, key, value))

    leaves = [x.detach().clone().requires_grad_() for x in (query, key, value, *parameters.values())]
    try:
        torch.autograd.gradcheck(output, leaves)
    except GradcheckError as failure:
        return [f"gradients differ from finite differences: {str(failure).splitlines()[0]}"]
    return []


# --- The cases of `check_backend` ------------------------------------------------------------------------------

_QUERIES, _KEYS, _BATCH = 19, 67, (2, 3)


def _mask(name: str, queries: int, keys: int) -> Mask | None:
    """Return a mask for a batch of two. With "lengths" and "keep", some queries have no allowed keys."""
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
    """Return a case of two sequences with three heads that share their keys. A case with a causal mask has a bias."""

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
"""The default cases of `check_backend`: every named score with four masks in four dtypes."""
