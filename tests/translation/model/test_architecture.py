"""`Architecture`: what makes no model is refused with a sentence."""

import pytest
from tests.refuses import refuses

from regard.translation.model.architecture import Architecture


@pytest.mark.parametrize(
    ("choices", "argument", "word"),
    [
        ({"hidden": 0}, "hidden", "a whole number from 1 to 65,536"),
        ({"embedding": 2.5}, "embedding", "a whole number from 1 to 65,536"),
        ({"layers": True}, "layers", "True"),
        ({"attention_dim": -1}, "attention_dim", "a whole number from 1 to 65,536"),
        ({"hidden": 10**9 + 7, "heads": 10**9}, "hidden", "1000000007"),
        ({"layers": 99_999_999}, "layers", "99999999"),
        ({"unit": "rnn"}, "unit", "'rnn'"),
        ({"cell": "luong"}, "cell", "'luong'"),
        ({"attention": "softmax"}, "attention", "'softmax'"),
        ({"attention": ["dot"]}, "attention", "['dot']"),
        ({"state_dropout": 1.0}, "state_dropout", "a probability from 0 up to"),
        ({"word_dropout": -0.1}, "word_dropout", "-0.1"),
        ({"tied": 1}, "tied", "true or false"),
        ({"heads": 3, "hidden": 8}, "heads", "a divisor of hidden=8"),
        ({"heads": 4, "hidden": 15}, "heads", "a divisor of hidden=15"),
        ({"heads": 9, "hidden": 7}, "heads", "a divisor of hidden=7"),
        ({"heads": 2, "attention": "none"}, "heads", '1 where attention is "none"'),
    ],
)
def test_a_wrong_value_is_named(choices, argument, word):
    with refuses(argument, word):
        Architecture(**choices)


def test_the_default_is_equation_13():
    default = Architecture()
    assert (default.cell, default.attention, default.heads) == ("bahdanau", "additive", 1)
