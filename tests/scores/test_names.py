"""Scores by name, and what is refused where a score is asked for."""

import pytest
import torch
from tests.refuses import refuses

import regard
from regard import scores
from regard.scores.names import KERNEL_SCORES, NAMED_SCORES, SIZED_SCORES, check_score, new_score, score_by_name


@pytest.mark.parametrize("name", NAMED_SCORES)
def test_a_name_is_the_score_with_bandwidth_1(name):
    tokens = torch.randn(5, 3)
    by_name = regard.attend(tokens, tokens, tokens, name)
    assert torch.equal(by_name, regard.attend(tokens, tokens, tokens, NAMED_SCORES[name]()))


def test_every_public_score_has_a_name_or_wraps_one():
    named = {score.__name__ for score in NAMED_SCORES.values()}
    sized = {call.partition("(")[0] for call in SIZED_SCORES.values()}
    assert named | sized | {"Rotary", "Score"} == set(scores.__all__)


def test_kernels_are_named_after_their_links():
    assert all(name == kernel.kernel_name for name, kernel in KERNEL_SCORES.items())


@pytest.mark.parametrize("name", NAMED_SCORES)
def test_new_score_returns_a_new_instance(name):
    assert type(new_score(name)) is NAMED_SCORES[name]
    assert new_score(name) is not new_score(name)
    assert new_score(name) is not score_by_name(name)


@pytest.mark.parametrize("name", SIZED_SCORES)
def test_a_name_that_needs_sizes_is_refused_with_the_constructor(name):
    with refuses("score", f"'{name}'", f"regard.scores.{name.capitalize()}("):
        score_by_name(name)


def test_an_unknown_name_is_refused_with_all_names():
    with refuses("score", "'gausian'"):
        score_by_name("gausian")


@pytest.mark.parametrize("score", [None, 3, scores.Gaussian, torch.zeros(2), ["dot"]])
def test_what_is_neither_name_nor_score_nor_callable_is_refused(score):
    with refuses("score", "Build", "first", "score"):
        check_score(score)


@pytest.mark.parametrize("score", ["anything", scores.Dot(), torch.cdist])
def test_names_scores_and_callables_pass(score):
    assert check_score(score) is None
