"""Exact scores: each formula for tanh(a + b) agrees with the reference, and the error bound holds everywhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.triton.additive.judge import (
    Call,
    drawn,
    judged,
    plan_of,
    problem_of,
    record_of,
    scores_of,
    true_scores,
)

from regard.backends.triton.additive import exact, fold_problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SINGLE = torch.finfo(torch.float32).eps
# Allowed L2 errors in float32, relative to the size of the output and of each gradient.
OUTPUT_ERROR, GRADIENT_ERROR = 2e-6, 1e-5


def formulas(call: Call) -> set[str]:
    """Return the formulas of the tiles of a call."""
    prepared = exact.ExactScores(fold_problem(problem_of(call), rank=0))
    queries, keys = (side.max_abs.flatten().tolist() for side in (prepared.query, prepared.key))
    return {formula(a, b) for a in queries for b in keys}


def formula(max_a: float, max_b: float) -> str:
    """Return the formula of a tile with these largest |activations|."""
    if max(max_a, max_b) <= exact.ADDITION_RANGE.value:
        return "addition"
    if max_a + max_b <= exact.PRODUCT_RANGE.value:
        return "product"
    return "clamped" if max(max_a, max_b) <= exact.CLAMPED_RANGE.value else "direct"


@pytest.mark.parametrize(
    ("spread", "expected"), [(0.2, "addition"), (1.0, "product"), (8.0, "clamped"), (60.0, "direct")]
)
def test_each_formula_agrees_with_tanh(spread, expected):
    call = drawn(spread=spread)
    assert formulas(call) == {expected}
    result = judged(call)
    assert result.complaints() == []
    for name, error in result.norms().items():
        assert error <= (OUTPUT_ERROR if name in ("output", "log_mass") else GRADIENT_ERROR), name


def test_tiles_of_one_call_use_different_formulas():
    call = drawn(33, 33)
    sizes = torch.tensor([0.2, 8.0, 60.0]).repeat_interleave(16)[:33, None]
    call = call._replace(query=call.query * sizes, key=call.key * torch.cat([sizes[:16], sizes[:16] * 5, sizes[32:]]))
    assert formulas(call) == {"addition", "product", "clamped", "direct"}
    assert judged(call).complaints() == []


def outlier(tokens):
    tokens = tokens.clone()
    tokens[..., 3, 1] = 1e4
    return tokens


PLACES = {
    "normal": lambda tokens: tokens,
    "constant": lambda tokens: torch.full_like(tokens, 0.7),
    "zero": torch.zeros_like,
    "tiny": lambda tokens: 1e-30 * tokens,
    "one outlier": outlier,
    "1e4 and -1e4": lambda tokens: 1e4 * tokens.sign(),
    "all saturated": lambda tokens: 30 + tokens.abs(),
    "the ends of a formula": lambda tokens: 5.195 * tokens.sign(),
    "the ends of float32": lambda tokens: 3e38 * tokens.sign(),
}


def weights_of(size: str, hidden: int):
    """Return weights (hidden,) of one size, or of all sizes from 1e-6 to 1e6."""
    if size == "all":
        return torch.logspace(-6, 6, hidden) * torch.randn(hidden).sign()
    return float(size) * torch.randn(hidden)


@pytest.mark.parametrize("size", ["1", "all"])
@pytest.mark.parametrize("place", PLACES)
def test_error_of_a_score_is_within_its_bound(place, size):
    call = drawn(5, 7, hidden=8)
    _check_bound(
        call._replace(query=PLACES[place](call.query), key=PLACES[place](call.key), weight=weights_of(size, 8))
    )


@pytest.mark.parametrize("size", ["1e-6", "1e6"])
@pytest.mark.parametrize("place", ["normal", "1e4 and -1e4"])
def test_error_bound_holds_for_small_and_large_weights(place, size):
    call = drawn(5, 7, hidden=8, spread=4.0)
    _check_bound(call._replace(key=PLACES[place](call.key), weight=weights_of(size, 8)))


def _check_bound(call: Call) -> None:
    """Check the error bound of the plan plus one rounding for each group of four units."""
    found = scores_of(call).double()
    total = call.weight.double().abs().sum()
    worst = (found - true_scores(call)).abs().max()
    assert worst <= (plan_of(call).error + SINGLE * math.ceil(call.weight.shape[-1] / 4)) * total


@given(
    spreads=st.tuples(st.floats(-4, 4), st.floats(-4, 4)),
    shift=st.floats(-20, 20),
    exponents=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    hidden=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=15)
def test_error_bound_holds_for_activations_of_any_scale(spreads, shift, exponents, hidden, seed):
    torch.manual_seed(seed)
    call = drawn(5, 6, hidden=hidden)
    low, high = sorted(exponents)
    weight = 10 ** (low + (high - low) * torch.rand(hidden)) * torch.randn(hidden).sign()
    # Opposite shifts cancel: large activations whose sum is small.
    query, key = shift + 10 ** spreads[0] * call.query, -shift + 10 ** spreads[1] * call.key
    _check_bound(call._replace(query=query, key=key, weight=weight))


@pytest.mark.parametrize("place", ["constant", "1e4 and -1e4", "all saturated", "one outlier"])
def test_gradients_of_extreme_activations_agree(place):
    call = drawn(5, 7, hidden=4)
    assert judged(call._replace(query=PLACES[place](call.query), key=PLACES[place](call.key))).complaints() == []


@pytest.mark.parametrize("size", ["1e-6", "1e6"])
def test_gradients_of_small_and_large_weights_agree(size):
    call = drawn(5, 7)
    assert judged(call._replace(weight=weights_of(size, 4))).complaints() == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_or_infinite_token_affects_its_own_row_and_column_only(bad):
    call = drawn(18, 18)
    sound = scores_of(call)
    query, key = call.query.clone(), call.key.clone()
    query[2, 1], key[17, 0] = bad, bad
    found = scores_of(call._replace(query=query, key=key))
    rows, columns = torch.ones(18, dtype=torch.bool), torch.ones(18, dtype=torch.bool)
    rows[2], columns[17] = False, False
    torch.testing.assert_close(found[rows][:, columns], sound[rows][:, columns], rtol=0, atol=1e-5)
    if math.isnan(bad):
        assert found[2].isnan().all()
        assert found[:, 17].isnan().all()
    else:
        limit = true_scores(call._replace(query=query, key=key))
        torch.testing.assert_close(found[2, :17].double(), limit[2, :17], rtol=0, atol=1e-5)
        torch.testing.assert_close(found[rows][:, 17].double(), limit[rows][:, 17], rtol=0, atol=1e-5)


def test_infinite_activation_has_gradient_0():
    call = drawn(5, 7)
    query, key = call.query.clone(), call.key.clone()
    query[2, 1], key[6, 0] = math.inf, -math.inf
    result = judged(call._replace(query=query, key=key))
    assert result.complaints() == []
    assert max(result.found["query"][2, 1].abs(), result.found["key"][6, 0].abs()) < 1e-8


def test_nan_query_does_not_change_the_other_rows():
    call = drawn(18, 18)
    query = call.query.clone()
    query[2, 1] = math.nan
    found, sound = record_of(call._replace(query=query)), record_of(call)
    others = torch.arange(18) != 2
    assert all(x[2].isnan().all() for x in found)
    for one, other in zip(found, sound, strict=True):
        torch.testing.assert_close(one[others], other[others], rtol=1e-5, atol=1e-5)


def test_padded_tokens_are_expanded_as_zeros():
    call = drawn(17, 19, spread=3.0)
    query = exact.ExactScores(fold_problem(problem_of(call), rank=0)).query
    exps, tanhs = query.functions.split(4, -2)
    assert exps.shape == tanhs.shape == (1, 1, 4, 2 * exact.BLOCK)
    assert (exps[..., 17:] == 1).all()
    small = call._replace(query=call.query / 10)
    _, tanhs = exact.ExactScores(fold_problem(problem_of(small), rank=0)).query.functions.split(4, -2)
    assert (tanhs[..., 17:] == 0).all()
    torch.testing.assert_close(
        query.max_abs.flatten(), torch.stack([call.query[:16].abs().max(), call.query[16].abs().max()])
    )
