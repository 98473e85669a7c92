"""Point 19 of the chapter: two scores of one size, and the rules that each can and cannot learn."""

import torch

import regard
from regard.scores import Additive, Bilinear
from regard.translation.lab.expressiveness import (
    HIDDEN_DIM,
    KEY_DIM,
    KEYS,
    QUERY_DIM,
    Expressiveness,
    Learnt,
    bilinear_rule,
    learn,
    measure_expressiveness,
    nearest_rule,
)


def count(score):
    return sum(parameter.numel() for parameter in score.parameters())


def found(score, rule):
    generator = torch.Generator().manual_seed(1)
    return learn(score, rule(generator), generator, updates=150)


def test_both_scores_have_exactly_as_many_parameters():
    assert count(Bilinear(QUERY_DIM, KEY_DIM)) == count(Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)) == 216


def test_each_score_is_the_better_one_under_its_own_rule():
    bilinear, additive = Bilinear(QUERY_DIM, KEY_DIM), Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    assert found(bilinear, bilinear_rule) > 0.8
    assert found(additive, bilinear_rule) < 0.6
    bilinear, additive = Bilinear(QUERY_DIM, KEY_DIM), Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    assert found(bilinear, nearest_rule) < 0.3
    assert found(additive, nearest_rule) > 0.75


def test_an_additive_score_is_odd_and_so_needs_the_constant():
    score = Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    query, key = torch.randn(3, QUERY_DIM), torch.randn(5, KEY_DIM)
    plain, turned = (regard.inspect(sign * query, sign * key, key, score=score).scores() for sign in (1, -1))
    assert torch.allclose(plain, -turned)


def test_rules_do_not_look_at_the_constant():
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 4, QUERY_DIM), torch.randn(2, KEYS, KEY_DIM)
    other_query, other_key = query.clone(), key.clone()
    other_query[..., -1], other_key[..., -1] = 7.0, -7.0
    for make in (bilinear_rule, nearest_rule):
        rule = make(generator)
        assert torch.equal(rule(query, key), rule(other_query, other_key))
        assert rule(query, key).shape == (2, 4, KEYS)


def test_every_rule_score_and_seed_has_its_row():
    measured = measure_expressiveness(seeds=1, updates=1)
    assert len({(row.rule, row.score) for row in measured.rows}) == len(measured.rows) == 6
    assert len(measured.table().rows) == 6


def test_the_text_has_both_counts_and_the_mean_over_seeds():
    rows = [Learnt("bilinear rule", "bilinear", 216, seed, share) for seed, share in ((1, 0.9), (2, 1.0))]
    printed = str(Expressiveness(tuple(rows), 8, 27, 1 / 16))
    assert "216" in printed
    assert "95.0 ± 63.5" in printed
    assert "chance finds 6.2%" in printed
