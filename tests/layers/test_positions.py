"""ALiBi: the slopes of its authors' code, and a bias that `attend` takes."""

import math

import pytest
import torch
from tests.bounds import assert_same

import regard
from regard import RegardError
from regard.layers import Alibi


def published_slopes(heads):
    """The authors' function, word for word (ofirpress/attention_with_linear_biases)."""

    def of_power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_power(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_slopes_are_the_published_ones(heads):
    assert_same(Alibi(heads).slopes(), torch.tensor(published_slopes(heads), dtype=torch.float64), torch.float32)


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
    with pytest.raises(RegardError, match="heads: got 0; needed a whole number"):
        Alibi(0)
    assert repr(Alibi(3)) == "Alibi(heads=3)"
