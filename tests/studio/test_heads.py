"""Heads made by hand do their tasks under every score, and obey the identities of the chapter."""

import pytest
import torch

from regard.masks import Mask
from regard.scores import Additive, Bilinear
from regard.scores.names import NAMED_SCORES, SIZED_SCORES
from regard.studio.heads import SCORES, TASKS, Heads, right_keys
from regard.studio.words import tokens

WORDS = ["the", "cat", "sat", "on", "the", "mat"]


def make(width=1.5, spread=0.0, dim=16):
    made = tokens(WORDS, dim, spread)
    return Heads(made, made, dim, width)


def test_every_score_of_the_library_can_be_chosen():
    assert set(SCORES) == set(NAMED_SCORES) | set(SIZED_SCORES)


@pytest.mark.parametrize("score", SCORES)
def test_every_head_finds_what_it_looks_for(score):
    weights = make(width=0.7).attend(score, None).weights()
    for number, task in enumerate(TASKS):
        for query, right in enumerate(right_keys(task, WORDS, WORDS)):
            if right:
                assert int(weights[number, query].argmax()) in right, (task.title, query)


def test_gaussian_dot_and_cosine_are_one_at_equal_norms_and_part_at_others():
    equal, unequal = make(width=4.0), make(width=4.0, spread=0.6)
    for score in ("dot", "cosine"):
        torch.testing.assert_close(equal.attend(score, None).weights(), equal.attend("gaussian", None).weights())
        apart = unequal.attend(score, None).weights() - unequal.attend("gaussian", None).weights()
        assert apart.abs().max() > 0.05


def test_bilinear_is_the_dot_product_of_projected_heads():
    heads = make()
    scale = (2 * 16 + 1) ** -0.5
    expected = (heads.query @ heads.key.mT * scale).softmax(-1)
    torch.testing.assert_close(heads.attend("bilinear", None).weights(), expected)
    assert isinstance(heads._bilinear(), Bilinear)


def test_additive_is_equation_12_written_out():
    heads = make()
    q, k = heads.query[:, :, None], heads.key[:, None]
    scores = (torch.tanh(q - k + 1) + torch.tanh(k - q + 1)).sum(-1)
    torch.testing.assert_close(heads.attend("additive", None).weights(), scores.softmax(-1))
    assert isinstance(heads._additive(), Additive)


def test_a_mask_holds_for_every_head():
    weights = make().attend("additive", Mask.causal()).weights()
    assert not weights.triu(1).any()
