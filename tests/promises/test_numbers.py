"""Numbers under adversarial inputs: each backend and dtype against float64, and what must not change the result.

The reference in float64 is judged by the oracle, the reference in a dtype by a bound on paper, the other backends by
the reference's measured error (tests/bounds.py).
"""

from collections.abc import Callable

import pytest
import torch
from tests import bounds, oracle
from tests.contracts.cases import SCORES, array
from torch import Tensor

import regard
from regard import testing
from regard.checks import accumulation_dtype

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, where a GPU is silent

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
QUERIES, DIM = 5, 4
BACKENDS = {
    "torch": ("scaled_dot",),
    "blocked": ("scaled_dot", "gaussian", "additive"),
    "triton": ("gaussian", "additive"),
}
Tokens = tuple[Tensor, Tensor, Tensor]


def _tokens(keys: int, spread: float = 1.0) -> Tokens:
    query, key = (spread * torch.randn(count, DIM, dtype=torch.float64) for count in (QUERIES, keys))
    return query, key, torch.randn(keys, 3, dtype=torch.float64)


def _ties(dtype: torch.dtype) -> Tokens:
    query, key, value = _tokens(2)
    return query, key.repeat(10, 1), value.repeat(10, 1) + torch.randn(20, 3, dtype=torch.float64)


def _identical(dtype: torch.dtype) -> Tokens:
    query, key, _ = _tokens(1)
    return query, key.repeat(19, 1), torch.randn(19, 3, dtype=torch.float64)


def _denormal(dtype: torch.dtype) -> Tokens:
    query, key, value = _tokens(19)
    small = torch.finfo(dtype).smallest_normal / 8
    return query * small, key * small, value


def _mixed(dtype: torch.dtype) -> Tokens:
    """Keys from the smallest to large ones, values likewise."""
    query, key, value = _tokens(21)
    sizes = torch.logspace(-6, 1.5, 21, dtype=torch.float64).unsqueeze(-1)
    return query, key * sizes, value * sizes.flip(0)


ADVERSARIES: dict[str, Callable[[torch.dtype], Tokens]] = {
    "huge scores": lambda dtype: _tokens(19, spread=40.0),
    "large scores": lambda dtype: _tokens(19, spread=6.0),
    "denormals": _denormal,
    "ties": _ties,
    "identical keys": _identical,
    "one key": lambda dtype: _tokens(1),
    "many keys": lambda dtype: _tokens(701),
    "mixed": _mixed,
}


@pytest.fixture(autouse=True)
def _small_tiles(set_limits):
    set_limits(tile_pairs=1)


def score_of(name: str, dtype: torch.dtype, rounded: torch.dtype) -> regard.scores.Score | str:
    """The score in a dtype; rounded: to which its parameters were rounded before, which is no error of a backend."""
    torch.manual_seed(11)
    return regard.scores.Additive(DIM, DIM, 8).to(rounded).to(dtype) if name == "additive" else name


def attend(tokens: Tokens, score: str, dtype: torch.dtype, backend: str, rounded: torch.dtype | None = None, **more):
    given = score_of(score, dtype, rounded or dtype)
    with torch.no_grad():
        return regard.attend(*(token.to(dtype) for token in tokens), given, backend=backend, **more)


def drawn(adversary: str, dtype: torch.dtype) -> Tokens:
    """Tokens as they are after rounding to the dtype, in float64: rounding the input is no error of a backend."""
    query, key, value = (token.to(dtype).double() for token in ADVERSARIES[adversary](dtype))
    return query, key, value


def on_paper(tokens: Tokens, score: str, dtype: torch.dtype, shift: float = 0.0) -> float:
    """What the reference may be off: each score by its own roundings, the sums by one for each key, the output by one.

    A change of every score by at most d changes the weights by at most e^(2d) - 1 in sum, and the output by that
    times the largest value.
    """
    query, key, value = tokens
    eps = torch.finfo(accumulation_dtype(dtype)).eps
    size = {
        "scaled_dot": (query.abs() @ key.abs().mT).max().item(),
        "gaussian": torch.cdist(query, key).square().max().item(),
        "additive": 8.0 + 4 * (query.abs().max() + key.abs().max()).item(),
    }[score]
    off = 2 * torch.tensor((DIM + 4) * eps * (size + abs(shift)), dtype=torch.float64)
    largest = value.abs().max().item()
    return largest * (off.expm1().item() + (len(key) + 8) * eps) + testing.ulp(value, dtype)


def cases(backends: dict[str, tuple[str, ...]], *, paper: bool = True):
    """Backends, scores and dtypes; paper: leave out where the bound on paper says nothing.

    An additive score's projections are rounded to half precision: on paper that may change any weight.
    """
    return [
        pytest.param(backend, score, dtype, id=f"{backend}-{score}-{str(dtype).removeprefix('torch.')}")
        for backend, scores in backends.items()
        for score in scores
        for dtype in DTYPES
        if not (backend == "triton" and dtype == torch.float64)
        if not (paper and score == "additive" and dtype.itemsize == 2)
    ]


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive"])
def test_the_reference_in_float64_is_the_oracle(adversary, score):
    tokens = drawn(adversary, torch.float32)
    # The Gaussian as its logarithm: far from every key the kernel itself is 0 in float64, too.
    formula = {
        "scaled_dot": oracle.named("scaled_dot"),
        "gaussian": lambda q, k: -sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) / 2,
        "additive": SCORES["additive"].formula(score_of("additive", torch.float64, torch.float64)),
    }[score]
    right = oracle.pool_batch(formula, *map(array, tokens), None, None)
    found = attend(tokens, score, torch.float64, "reference")
    bounds.assert_close(found, torch.from_numpy(right.output), on_paper(tokens, score, torch.float64))


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(("backend", "score", "dtype"), cases({"reference": ("scaled_dot", "gaussian", "additive")}))
def test_the_reference_is_within_its_bound(backend, score, dtype, adversary):
    tokens = drawn(adversary, dtype)
    exact = attend(tokens, score, torch.float64, "reference", rounded=dtype)
    bounds.assert_close(attend(tokens, score, dtype, backend), exact, on_paper(tokens, score, dtype))


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(("backend", "score", "dtype"), cases(BACKENDS, paper=False))
def test_a_backend_is_within_its_bound(backend, score, dtype, adversary):
    tokens = drawn(adversary, dtype)
    exact = attend(tokens, score, torch.float64, "reference", rounded=dtype)
    own, found = (attend(tokens, score, dtype, name) for name in ("reference", backend))
    if dtype == torch.float64:  # there the reference is itself what is taken for exact
        allowed = on_paper(tokens, score, dtype)
    else:
        allowed = bounds.band(exact, bounds.error(own, exact), dtype)
    bounds.assert_close(found, exact, allowed, adversary)


@pytest.mark.parametrize(("backend", "score", "dtype"), cases({"reference": ("scaled_dot", "gaussian"), **BACKENDS}))
def test_one_key_is_its_value(backend, score, dtype):
    """To the bit; where kernels are summed without a maximum, f v / f rounds twice."""
    tokens = drawn("one key", dtype)
    divides = score == "gaussian" and backend in ("blocked", "triton")
    allowed = 2 * testing.ulp(tokens[2], dtype) if divides else 0.0
    bounds.assert_close(attend(tokens, score, dtype, backend), tokens[2].expand(QUERIES, -1), allowed)


@pytest.mark.parametrize(("backend", "score", "dtype"), cases({"reference": ("scaled_dot", "gaussian"), **BACKENDS}))
def test_the_order_of_the_keys_does_not_matter(backend, score, dtype):
    tokens = drawn("large scores", dtype)
    order = torch.randperm(len(tokens[1]))
    first = attend(tokens, score, dtype, backend)
    second = attend((tokens[0], tokens[1][order], tokens[2][order]), score, dtype, backend)
    bounds.assert_close(first, second, 2 * on_paper(tokens, score, dtype))


@pytest.mark.parametrize("constant", [-300.0, 300.0])
@pytest.mark.parametrize(("backend", "score", "dtype"), cases({"reference": ("scaled_dot", "gaussian"), **BACKENDS}))
def test_a_constant_added_to_the_scores_does_not_matter(backend, score, dtype, constant):
    tokens = drawn("large scores", dtype)
    first = attend(tokens, score, dtype, backend)
    bias = torch.full((1, len(tokens[1])), constant, dtype=torch.promote_types(dtype, torch.float32))
    bias = bias.to(dtype) if backend == "torch" else bias
    second = attend(tokens, score, dtype, backend, bias=bias)
    bounds.assert_close(first, second, 2 * on_paper(tokens, score, dtype, constant))
