"""Lifted scores and gradients are within the error bound, with outliers too, and batch elements are independent."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import bounds
from tests.backends.triton.additive.judge import (
    Call,
    disagreements,
    drawn,
    judged,
    plan_of,
    record_of,
    results,
    score_of,
    scores_of,
    true_scores,
)

import regard
from regard import Mask
from regard.backends.triton.additive import lifted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SINGLE = torch.finfo(torch.float32).eps
LOOSE = 2e-2
DIAGONAL = Mask.window(0, 0, align="top_left")


def lifted_call(*sizes, **settings) -> Call:
    """Return a call whose tokens are in range, and whose tolerance allows the lift."""
    call = drawn(*sizes, **{"spread": 0.7, "tolerance": LOOSE} | settings)
    call = call._replace(query=call.query.clamp(-1.99, 1.99), key=call.key.clamp(-1.99, 1.99))
    assert plan_of(call).rank > 0
    return call


def test_every_result_is_within_what_the_plan_allows():
    result = judged(lifted_call(17, 18, hidden=5, tolerance=5e-3, bias=torch.randn(17, 18)))
    assert result.complaints() == []
    # The sum over many pairs has a far smaller error than the worst case: it is of the size of the tolerance.
    assert max(result.norms().values()) < 2 * 5e-3


@pytest.mark.usefixtures("small_slabs")
def test_several_slabs_masks_and_an_empty_row():
    call = lifted_call(
        17, 18, value_dim=1, batch=(2,), mask=Mask.causal(align="top_left") & Mask.lengths(torch.tensor([18, 0]))
    )
    assert disagreements(call) == []


def test_shared_axes_and_weights_per_head():
    assert disagreements(lifted_call(5, 7, batch=(2, 2), key_batch=(2, 1), heads=(2,))) == []


def test_values_in_two_chunks():
    assert disagreements(lifted_call(5, 7, value_dim=130)) == []


def with_outliers(call: Call, *, dense: bool = False) -> Call:
    """Return the call with outliers, on both sides of one unit and twice in one token; dense: blocks full of them, too.

    Tokens 0 to 15 of each side are the first block.
    """
    query, key = call.query.clone(), call.key.clone()
    query[..., 3, 2], query[..., 16, 0], query[..., 16, 1] = 30.0, -2.5, math.inf
    key[..., 20, 1], key[..., 20, 2], key[..., 32, 2] = -9.0, 2.01, -1e4
    if dense:
        query[..., :8, :3], key[..., 16:32, 1] = 5.0, -6.0
    return call._replace(query=query, key=key)


@pytest.mark.usefixtures("small_slabs")
@pytest.mark.parametrize("dense", [False, True])
def test_outliers_do_not_increase_the_error(dense):
    """Single outliers and blocks of them, forward and backward, in every slab."""
    result = judged(with_outliers(lifted_call(17, 33, value_dim=1, bias=torch.randn(17, 33)), dense=dense))
    assert result.complaints() == []
    assert max(result.norms().values()) < 2 * LOOSE


def test_outliers_of_shared_tokens_and_weights_per_head():
    call = with_outliers(lifted_call(17, 33, value_dim=1, batch=(2, 2), key_batch=(2, 1), heads=(2,)))
    call.key[1, 0, 5, 3] = 7.0
    assert disagreements(call) == []


@pytest.mark.usefixtures("small_slabs")
def test_more_outliers_than_a_program_reads_at_once(monkeypatch):
    """Long lists, and tokens and sums in several parts, of several slabs."""
    monkeypatch.setattr(lifted, "ACTIVATIONS_PER_OUTLIER", 1)  # no block is flagged
    monkeypatch.setattr(lifted, "CORRECTED_TOKENS", 16)
    monkeypatch.setattr(lifted, "SUMMED_TOKENS", 16)
    monkeypatch.setattr(lifted, "LIST_TOKENS", 16)
    call = drawn(17, 33, value_dim=1, spread=2.0, tolerance=LOOSE)
    assert (call.query.abs() > 2).sum() > 10
    assert disagreements(call) == []


@given(
    reach=st.sampled_from([(2.0, 2.0), (1.0, 5.0)]),
    tolerance=st.sampled_from([5e-3, 2e-2]),
    spread=st.floats(-3, 0.5),
    outliers=st.booleans(),
    exponents=st.tuples(st.floats(-6, 6), st.floats(-6, 6)),
    hidden=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=5)
def test_values_and_slopes_of_pairs_are_within_the_bound(reach, tolerance, spread, outliers, exponents, hidden, seed):
    """Each query has one key, so that log_mass is a score and its gradient the slopes.

    The gradients of scores are 1 or 0, which are exact in half precision, so that only features are rounded.
    """
    torch.manual_seed(seed)
    low, high = sorted(exponents)
    weight = 10 ** (low + (high - low) * torch.rand(hidden)) * torch.randn(hidden).sign()
    call = drawn(16, 16, hidden, 1, spread=10**spread, mask=DIAGONAL, tolerance=tolerance, reach=reach)
    call = call._replace(weight=weight)
    if not outliers:
        call = call._replace(query=call.query.clamp(-reach[0], reach[0]), key=call.key.clamp(-reach[1], reach[1]))
    chosen = plan_of(call)
    assert chosen.rank > 0
    leaves = {name: call.leaves[name].requires_grad_() for name in ("query", "key", "weight")}
    _, scores = record_of(call._replace(**leaves))
    found = torch.autograd.grad(scores.sum(), list(leaves.values()))

    tanh = torch.tanh(call.query.double() + call.key.double())
    slopes, size = (1 - tanh**2) * weight, weight.double().abs()
    # float32: a few roundings of numbers of the size of the weights.
    error = chosen.error + 16 * SINGLE
    bounds.assert_close(scores, tanh @ weight.double(), error * size.sum().item(), "scores")
    bounds.assert_close(found[0], slopes, error * size.max().item(), "slopes by query")
    bounds.assert_close(found[1], slopes, error * size.max().item(), "slopes by key")
    bounds.assert_close(found[2], tanh.sum(0), 16 * error, "sums of tanh")


PLACES = {
    "constant": lambda tokens: torch.full_like(tokens, 1.3),
    "the ends of the range": lambda tokens: 2 * tokens.sign(),
    "just beyond": lambda tokens: 2.0001 * tokens.sign(),
    "1e4 and -1e4": lambda tokens: 1e4 * tokens.sign(),
    "all saturated": lambda tokens: 30 + tokens.abs(),
    "zero": torch.zeros_like,
}


@pytest.mark.parametrize(
    ("place", "size"),
    [*((place, 1.0) for place in PLACES), *(("the ends of the range", size) for size in (1e-6, 1e6))],
)
def test_scores_of_extreme_activations_are_within_the_bound(place, size):
    call = drawn(5, 7, tolerance=LOOSE)
    call = call._replace(query=PLACES[place](call.query), key=PLACES[place](call.key), weight=size * torch.randn(4))
    chosen = plan_of(call)
    assert chosen.rank > 0
    worst = (scores_of(call) - true_scores(call)).abs().max()
    assert worst <= (chosen.error + 16 * SINGLE) * call.weight.double().abs().sum()


def test_error_bound_is_not_far_above_the_error():
    call = lifted_call(32, 32, hidden=1)
    worst = (scores_of(call) - true_scores(call)).abs().max() / call.weight.abs().sum()
    assert plan_of(call).error / 20 <= worst <= plan_of(call).error


def test_scores_of_outliers_are_within_the_bound():
    call = with_outliers(lifted_call(17, 33))
    error = (scores_of(call) - true_scores(call)).abs()
    assert error.max() <= (plan_of(call).error + 16 * SINGLE) * call.weight.abs().sum()


def test_blocks_full_of_outliers_have_exact_scores():
    call = with_outliers(lifted_call(17, 33), dense=True)
    error = (scores_of(call) - true_scores(call)).abs()
    exact = torch.zeros(17, 33, dtype=torch.bool)
    exact[:16], exact[:, 16:32] = True, True
    assert error[exact].max() <= 32 * SINGLE * call.weight.abs().sum()
    assert error[~exact].max() > 32 * SINGLE * call.weight.abs().sum()


def test_nan_token_affects_its_own_row_and_column_only():
    call = lifted_call(17, 18)
    query, key = call.query.clone(), call.key.clone()
    query[2, 1], key[17, 0] = math.nan, math.nan
    bad = torch.zeros(17, 18, dtype=torch.bool)
    bad[2], bad[:, 17] = True, True
    assert torch.equal(scores_of(call._replace(query=query, key=key)).isnan(), bad)


def test_outlier_does_not_change_other_batch_elements():
    call = lifted_call(5, 7, batch=(2,))
    query, key = call.query.clone(), call.key.clone()
    query[0, 1, 1], key[0, 2, 0] = 50.0, -7.0
    found, sound = results(call._replace(query=query, key=key)), results(call)
    for name in ("output", "log_mass", "query", "key", "value"):
        assert torch.equal(found[name][1], sound[name][1]), name
        assert not torch.equal(found[name][0], sound[name][0]), name


def test_results_do_not_depend_on_other_batch_elements():
    call = lifted_call(5, 7, batch=(2,))
    whole = record_of(call)
    alone = record_of(call._replace(query=call.query[1:2], key=call.key[1:2], value=call.value[1:2]))
    for one, other in zip(whole, alone, strict=True):
        bounds.assert_same(one[1:2], other)


def test_evaluation_does_not_change_the_range():
    call = lifted_call(5, 7)
    score = score_of(call)
    tokens = 100 * call.query, call.key, call.value
    regard.attend(*tokens, score, backend="triton", tolerance=LOOSE)
    with torch.no_grad():
        regard.attend(*tokens, score.train(), backend="triton", tolerance=LOOSE)
    assert score.reach.range == (2.0, 2.0)


def test_features_do_not_depend_on_the_number_of_tokens_of_a_program(monkeypatch):
    """A block is flagged as a whole."""
    call = lifted_call(16, 16)
    query = call.query.clone()
    query[1, 1] = 9.0
    call = call._replace(query=query)
    found = scores_of(call)
    monkeypatch.setattr(lifted, "LIFT_TOKENS", 16)
    assert torch.equal(scores_of(call), found)
