"""Rotary positions: tokens are turned by their place, so that a dot product sees how far apart they stand."""

import pytest
import torch
from tests import bounds, oracle
from tests.refuses import refuses

import regard
from regard.scores import Additive, Rotary, ScaledDot


def drawn(queries=5, keys=7, dim=6):
    return [torch.randn(n, dim, dtype=torch.float64) for n in (queries, keys, keys)]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_a_token_is_turned_as_the_formula_says(first, base):
    query, _, _ = drawn()
    for prepare in (Rotary(base=base).prepare_query, Rotary(base=base).prepare_key):
        turned = prepare(query, first)
        for place, token in enumerate(query.numpy()):
            exact = torch.from_numpy(oracle.rotate(token, first + place, base))
            bounds.assert_close(turned[place], exact, bounds.roundings(exact, 8))


def test_scores_depend_on_relative_positions_only():
    query, key, _ = drawn()
    score = Rotary()
    products = [score.prepare_query(query, first) @ score.prepare_key(key, first).mT for first in (0, 1000)]
    bounds.assert_close(products[1], products[0], bounds.roundings(products[0], 4096))


def test_token_0_and_lengths_do_not_change():
    query, _, _ = drawn()
    turned = Rotary().prepare_query(query)
    assert torch.equal(turned[0], query[0])
    bounds.assert_same(turned.norm(dim=-1), query.norm(dim=-1))


def test_far_positions_are_turned_as_exactly_as_near_ones():
    """Angles in float32 would be off by 0.004 at position 100,000."""
    token = torch.randn(1, 6)
    exact = Rotary().prepare_query(token.double(), 100_000)
    bounds.assert_same(Rotary().prepare_query(token, 100_000), exact)


def test_attention_sees_the_order_of_keys():
    query, key, value = drawn()
    plain = regard.attend(query, key, value), regard.attend(query, key.flip(0), value.flip(0))
    rotary = regard.attend(query, key, value, Rotary()), regard.attend(query, key.flip(0), value.flip(0), Rotary())
    bounds.assert_same(*plain)
    assert not torch.allclose(*rotary)


def test_it_wraps_any_score_and_its_sink():
    query, key, value = drawn()
    inner = Additive(6, 6, 4).double()
    record = regard.inspect(query, key, value, Rotary(inner))
    exact = regard.inspect(
        oracle_rotated(query @ inner.query_weight.mT), oracle_rotated(key @ inner.key_weight.mT), value,
        lambda q, k: (torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)) * inner.weight).sum(-1),
    )  # fmt: skip
    bounds.assert_close(record.output, exact.output, bounds.roundings(exact.output, 64))
    assert Rotary(ScaledDot(sink=3)).sink_logits().shape == (3,)


def oracle_rotated(tokens):
    rows = [oracle.rotate(token, place) for place, token in enumerate(tokens.detach().numpy())]
    return torch.stack([torch.from_numpy(row) for row in rows])


def test_an_odd_dimension_is_refused():
    query, key, value = drawn(dim=5)
    with refuses("query", "dim 5"):
        regard.attend(query, key, value, Rotary())


@pytest.mark.parametrize("score", [3, None, torch.cdist, ScaledDot])
def test_what_has_no_preparation_cannot_be_wrapped(score):
    with refuses("score"):
        Rotary(score)


@pytest.mark.parametrize("base", [0, -1.0, float("nan"), float("inf"), "10", True])
def test_a_base_that_is_not_positive_and_finite_is_refused(base):
    with refuses("base"):
        Rotary(base=base)


def test_a_score_by_name_is_its_own():
    first, second = Rotary("gaussian"), Rotary("gaussian")
    first.eval()
    assert first.score is not second.score
    assert second.score.training
