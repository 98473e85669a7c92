"""`flatness`: 1 for uniform weights of any length, 0 for certain ones, padding unheard."""

from math import isnan, log

import pytest
import torch
from tests.refuses import refuses

from regard.translation.alignments import UNIFORM, flatness


@pytest.mark.parametrize("source", [2, 7, 300])
def test_the_two_ends(source):
    uniform = torch.full((5, source), 1 / source)
    assert flatness(uniform) == pytest.approx(1.0)
    assert flatness(uniform) > UNIFORM
    certain = torch.zeros(5, source)
    certain[:, 1] = 1
    assert flatness(certain) == 0.0
    assert not flatness(certain) > UNIFORM


def test_between_them_it_is_entropy_over_its_maximum():
    weights = torch.rand(4, 6).softmax(-1).double()
    wanted = [-sum(w * log(w) for w in row) / log(6) for row in weights.tolist()]
    assert flatness(weights) == pytest.approx(sum(wanted) / 4)


def test_padding_is_not_heard():
    short, long = (torch.rand(2, 3) * 5).softmax(-1), (torch.rand(4, 5) * 5).softmax(-1)
    batch = torch.zeros(2, 4, 5)
    batch[0, :2, :3], batch[0, 2:], batch[1] = short, 0.7, long
    together = flatness(batch, torch.tensor([3, 5]), torch.tensor([2, 4]))
    assert together == pytest.approx((2 * flatness(short) + 4 * flatness(long)) / 6)


def test_a_source_of_one_token_says_nothing():
    assert isnan(flatness(torch.ones(3, 1)))
    assert not flatness(torch.ones(3, 1)) > UNIFORM
    batch = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]])
    assert flatness(batch, torch.tensor([1, 2])) == pytest.approx(1.0)


def test_untrained_attention_is_uniform_and_peaked_attention_is_not():
    assert flatness((torch.randn(20, 15) * 0.3).softmax(-1)) > UNIFORM
    assert not flatness((torch.randn(20, 15) * 1.5).softmax(-1)) > UNIFORM


def test_bad_shapes_are_named():
    with refuses("weights", "(3,)"):
        flatness(torch.ones(3))
    with refuses("source_lengths", "of 2"):
        flatness(torch.ones(2, 3, 4), torch.tensor([1, 2, 3]))
