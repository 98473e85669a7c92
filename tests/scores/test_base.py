"""What every score is: per-token preparation and a closed form, which users can write themselves."""

import pytest
import torch
from tests import bounds
from tests.contracts.cases import POSITIONED, SCORES

import regard
from regard.scores import Score
from regard.scores.dot import DotPair

BUILD = {name: case.build for name, case in SCORES.items()} | POSITIONED


class Halved(Score):
    """A user's own score: a dot product of halved queries."""

    def prepare_query(self, query, first=0):
        return query / 2

    def pair(self, query, key):
        return DotPair(query, key, 1.0)


@pytest.mark.parametrize("backend", ["reference", "blocked", "torch"])
def test_a_users_own_score_runs_on_every_backend(backend):
    query, key, value = (torch.randn(2, n, 3, dtype=torch.float64) for n in (5, 7, 7))
    found = regard.attend(query, key, value, Halved(), backend=backend)
    bounds.assert_same(found, regard.attend(query, key, value, lambda q, k: q @ k.mT / 2))


@pytest.mark.parametrize("name", BUILD)
def test_preparation_keeps_rank_and_tokens(name):
    dims = (SCORES[name].query_dim, SCORES[name].key_dim) if name in SCORES else (6, 6)
    score = BUILD[name]()
    query, key = torch.randn(2, 3, 5, dims[0]), torch.randn(2, 3, 7, dims[1])
    assert score.prepare_query(query).shape[:-1] == query.shape[:-1]
    assert score.prepare_key(key).shape[:-1] == key.shape[:-1]


@pytest.mark.parametrize("name", BUILD)
def test_preparation_is_done_token_by_token(name):
    """A decoder keeps prepared keys and appends to them: each must depend on itself and its place alone."""
    dims = (SCORES[name].query_dim, SCORES[name].key_dim) if name in SCORES else (6, 6)
    score = BUILD[name]().double()
    key = torch.randn(2, 3, 7, dims[1], dtype=torch.float64)
    split = torch.cat([score.prepare_key(key[..., :4, :]), score.prepare_key(key[..., 4:, :], first=4)], dim=-2)
    bounds.assert_same(split, score.prepare_key(key))


@pytest.mark.parametrize("name", BUILD)
def test_a_score_can_be_saved_and_loaded(name):
    score, other = BUILD[name](), BUILD[name]()
    other.load_state_dict(score.state_dict())
    for (key, left), (_, right) in zip(score.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(left, right), key


@pytest.mark.parametrize("name", BUILD)
def test_a_score_says_what_it_is(name):
    score = BUILD[name]()
    assert repr(score).startswith(type(score).__name__ + "(")


def test_a_score_without_a_pair_is_no_score():
    with pytest.raises(TypeError, match="abstract"):
        Score()
