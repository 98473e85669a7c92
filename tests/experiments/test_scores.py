"""Unscaled products saturate, and additive scores find rules that bilinear ones cannot."""

import math

import pytest
import torch

import regard
from regard.experiments.scores import (
    HIDDEN_DIM,
    KEY_DIM,
    KEYS,
    QUERY_DIM,
    RULE_KEYS,
    SCORES,
    VANISHED,
    Expressiveness,
    Learnt,
    bilinear_rule,
    draw_expressiveness,
    draw_saturation,
    learn,
    measure_expressiveness,
    measure_saturation,
    nearest_rule,
)
from regard.scores import Additive, Bilinear


@pytest.fixture(scope="module")
def found():
    return measure_saturation((2, 16, 128, 512), draws=2)


def test_scaled_weights_keep_their_entropy_in_every_dimension(found):
    entropies = [row.entropy for row in found.of("scaled dot")]
    assert max(entropies) - min(entropies) < 0.02
    assert min(entropies) > 0.8


def test_unscaled_weights_lose_it(found):
    entropies = [row.entropy for row in found.of("dot")]
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[-1] < 0.1


def test_gradients_vanish_without_the_scale_and_only_then(found):
    plain, scaled = found.of("dot")[-1], found.of("scaled dot")[-1]
    assert plain.gradient < 0.05 * scaled.gradient
    assert plain.by_query < 0.5 * scaled.by_query
    assert plain.vanished > 0.3
    assert scaled.vanished == 0.0
    assert scaled.low > VANISHED


def test_one_dimension_by_the_formula():
    found = measure_saturation((3,), draws=1, seed=5)
    generator = torch.Generator().manual_seed(5)
    query, key, value = (
        torch.randn(1, count, width, generator=generator, dtype=torch.float64)
        for count, width in ((256, 3), (KEYS, 3), (KEYS, 1))
    )
    alpha = torch.softmax(query @ key.mT / math.sqrt(3), -1)
    output = alpha @ value
    gradient = (alpha * (value.mT - output)).norm(dim=-1)  # do / ds_j = alpha_j (v_j - o)
    row = found.of("scaled dot")[0]
    assert row.gradient == pytest.approx(float(gradient.quantile(0.5)))
    assert row.entropy == pytest.approx(float(-(alpha * alpha.log()).sum(-1).mean() / math.log(KEYS)))


def test_the_text_has_a_line_for_each_dimension(found):
    printed = str(found)
    assert all(f"\n  {dim} " in printed for dim in (2, 16, 128, 512))
    assert len(found.table().rows) == 4 * len(SCORES)


def test_every_panel_has_both_scores():
    found = measure_saturation((2, 8), draws=1)
    panels = draw_saturation(found).axes
    assert len(panels) == 3
    for axes in panels:
        drawn = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
        assert drawn == {"dot": [2, 8], "scaled dot": [2, 8]}
    assert list(panels[0].lines[0].get_ydata()) == [row.entropy for row in found.of("dot")]


def count(score):
    return sum(parameter.numel() for parameter in score.parameters())


def expressiveness(score, rule):
    generator = torch.Generator().manual_seed(1)
    return learn(score, rule(generator), generator, updates=150)


def test_both_scores_have_exactly_as_many_parameters():
    assert count(Bilinear(QUERY_DIM, KEY_DIM)) == count(Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)) == 216


def test_each_score_is_the_better_one_under_its_own_rule():
    bilinear, additive = Bilinear(QUERY_DIM, KEY_DIM), Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    assert expressiveness(bilinear, bilinear_rule) > 0.8
    assert expressiveness(additive, bilinear_rule) < 0.6
    bilinear, additive = Bilinear(QUERY_DIM, KEY_DIM), Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    assert expressiveness(bilinear, nearest_rule) < 0.3
    assert expressiveness(additive, nearest_rule) > 0.75


def test_an_additive_score_is_odd_and_so_needs_the_constant():
    score = Additive(QUERY_DIM, KEY_DIM, HIDDEN_DIM)
    query, key = torch.randn(3, QUERY_DIM), torch.randn(5, KEY_DIM)
    plain, turned = (regard.inspect(sign * query, sign * key, key, score=score).scores() for sign in (1, -1))
    assert torch.allclose(plain, -turned, atol=1e-6)


def test_rules_do_not_look_at_the_constant():
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 4, QUERY_DIM), torch.randn(2, RULE_KEYS, KEY_DIM)
    other_query, other_key = query.clone(), key.clone()
    other_query[..., -1], other_key[..., -1] = 7.0, -7.0
    for make in (bilinear_rule, nearest_rule):
        rule = make(generator)
        assert torch.equal(rule(query, key), rule(other_query, other_key))
        assert rule(query, key).shape == (2, 4, RULE_KEYS)


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


def test_bars_are_the_means_over_seeds():
    sizes = {"bilinear": 216, "additive": 216, "additive, 8 x as wide": 1728}
    rows = [
        Learnt(rule, score, count, seed, 0.1 * seed + 0.05 * len(score) / 10)
        for rule in ("bilinear rule", "nearest rule")
        for score, count in sizes.items()
        for seed in (1, 2)
    ]
    found = Expressiveness(tuple(rows), 8, 27, 1 / 16)
    panels = draw_expressiveness(found).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["bilinear rule", "nearest rule"]
    widths = [bar.get_width() for axes in panels for bar in axes.patches]
    assert widths == pytest.approx([100 * interval.mean for _, interval in found.found().values()])
    assert "1728 parameters" in panels[0].get_yticklabels()[2].get_text()
