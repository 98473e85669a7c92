"""ALiBi: the slopes of its paper, and a bias that `attend` takes."""

import pytest
import torch
from tests.bounds import assert_same
from tests.refuses import refuses

import regard
from regard.layers import Alibi


def slopes_of_the_paper(heads):
    """Section 3 of arXiv 2108.12409: 2^(-8i/n), i = 1 ... n, for n heads.

    If n is no power of two, the slopes are those of the next lower power p, and then every other one of 2p, from the
    first on.
    """
    lower = 2 ** (heads.bit_length() - 1)
    exponents = [8 * i / lower for i in range(1, lower + 1)] + [4 * i / lower for i in range(1, 2 * lower + 1, 2)]
    return 2.0 ** -torch.tensor(exponents[:heads], dtype=torch.float64)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_slopes_are_those_of_the_paper(heads):
    assert_same(Alibi(heads).slopes(), slopes_of_the_paper(heads), torch.float32)


def test_a_line_for_each_head_falling_both_ways():
    tile = Alibi(2)(torch.tensor([1, 4]), torch.arange(6))
    assert tile.shape == (2, 2, 6)
    assert torch.equal(tile[0], tile[0, 0, 0] * torch.tensor([[1, 0, 1, 2, 3, 4], [4, 3, 2, 1, 0, 1]]))
    assert_same(tile[1], tile[0] / 16)


def test_it_is_a_bias_of_attend():
    query, key, value = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 2)
    tile = Alibi(3)(torch.arange(5), torch.arange(7))
    wanted = regard.attend(query, key, value, bias=tile)
    assert_same(regard.attend(query, key, value, bias=Alibi(3)), wanted)


def test_half_precision_layers_keep_exact_slopes():
    assert torch.equal(Alibi(12).half().slopes(), Alibi(12).slopes())


def test_heads_are_checked():
    with refuses("heads", "number", "whole"):
        Alibi(0)
    assert repr(Alibi(3)) == "Alibi(heads=3)"
