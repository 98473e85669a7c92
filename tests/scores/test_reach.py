"""The range of an additive score is a rung of a ladder: moved while training on a GPU, fixed at evaluation."""

import copy
import math
import pickle

import pytest
import torch

import regard
from regard.scores import Additive, reach
from regard.scores.reach import LADDER, START, Reach, rung

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="ranges are looked at on a GPU")


def test_it_begins_on_the_ladder_which_only_rises():
    assert Reach().range == (START, START)
    assert START in LADDER
    assert list(LADDER) == sorted(set(LADDER))
    assert LADDER[0] > 0


@pytest.mark.parametrize("step", LADDER)
def test_a_rung_holds_what_reaches_up_to_it(step):
    assert rung(step) == step
    assert rung(math.nextafter(step, 0.0)) == step
    above = [other for other in LADDER if other > step]
    assert rung(math.nextafter(step, math.inf)) == (above[0] if above else LADDER[-1])


@pytest.mark.parametrize(
    ("largest", "expected"), [(0.0, LADDER[0]), (math.nan, LADDER[0]), (1e4, LADDER[-1]), (math.inf, LADDER[-1])]
)
def test_what_is_beyond_the_ladder_takes_its_ends(largest, expected):
    assert rung(largest) == expected


def test_each_side_has_a_rung_of_its_own():
    ranges = Reach()
    ranges.settle(0.3, 4.2)
    assert ranges.range == (rung(0.3), rung(4.2))
    assert ranges.range[0] < 4.2 <= ranges.range[1]
    score = Additive.of_projected(4)
    score.reach.settle(0.3, 4.2)
    assert score.pair(torch.randn(3, 4), torch.randn(5, 4)).reach == (rung(0.3), rung(4.2))


def test_one_token_in_so_many_does_not_count(monkeypatch):
    monkeypatch.setattr(reach, "OUTLIERS", 10)
    tokens = torch.rand(4, 5, 3)
    tokens[0, 1, 2], tokens[3, 0, 0], tokens[2, 2, 2] = -50.0, 9.0, -3.0
    assert reach._almost_largest(tokens) == 3.0
    monkeypatch.setattr(reach, "OUTLIERS", 100)
    assert reach._almost_largest(tokens) == 50.0


@pytest.fixture
def looks(monkeypatch):
    """How many times a score has looked at its tokens."""
    seen = []
    monkeypatch.setattr(Reach, "observe", lambda self, query, key: seen.append((query.shape, key.shape)))
    return seen


def test_only_training_looks(looks):
    score, query, key = Additive(3, 5, 4), torch.randn(2, 6, 3), torch.randn(2, 7, 5)
    regard.attend(query, key, key, score)
    assert looks == [((2, 6, 4), (2, 7, 4))]  # projected
    with torch.no_grad():
        regard.attend(query, key, key, score)
    regard.attend(query, key, key, score.eval())
    assert len(looks) == 1


def test_a_cpu_has_nothing_to_look_at():
    ranges = Reach()
    for _ in range(40):
        ranges.observe(torch.full((3, 4), 0.1, device="cpu"), torch.full((3, 4), 0.1, device="cpu"))
    assert ranges.range == (START, START)


def test_a_copy_keeps_its_range_and_looks_for_itself():
    score = Additive(3, 3, 4)
    score.reach.settle(2.0, 3.0)
    score.reach._calls, score.reach._pending = 5, object()
    for other in (copy.deepcopy(score.reach), pickle.loads(pickle.dumps(score.reach))):
        assert other.range == (2.0, 3.0)
        assert (other._calls, other._pending) == (0, None)
    assert score.reach._calls == 5


def test_it_is_no_part_of_the_state_of_a_model():
    assert set(Additive(3, 3, 4).state_dict()) == {"query_weight", "key_weight", "weight"}


@GPU
def test_what_was_seen_is_taken_over_some_calls_later():
    score = Additive.of_projected(4).to("cuda")
    query, key = torch.full((9, 4), 0.7, device="cuda"), torch.full((5, 4), -3.2, device="cuda")
    assert score.pair(query, key).reach == (START, START)
    torch.cuda.synchronize()
    assert score.pair(query, key).reach == (rung(0.7), rung(3.2))
    score.eval()
    for _ in range(2 * reach.EVERY):
        assert score.pair(7 * query, key).reach == (rung(0.7), rung(3.2))


@GPU
def test_it_looks_once_in_so_many_calls():
    score = Additive.of_projected(4).to("cuda")
    small, large = (torch.full((3, 4), size, device="cuda") for size in (0.7, 7.7))
    score.pair(small, small)
    torch.cuda.synchronize()
    ranges = [score.pair(large, large).reach for _ in range(reach.EVERY)]
    torch.cuda.synchronize()
    assert set(ranges) == {(rung(0.7), rung(0.7))}
    assert score.pair(large, large).reach == (rung(7.7), rung(7.7))
