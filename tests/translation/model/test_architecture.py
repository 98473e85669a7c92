"""`Architecture`: what makes no model is refused with a sentence."""

import pytest

from regard.errors import RegardError
from regard.translation.model.architecture import SCORES, Architecture


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"hidden": 0}, "hidden: got 0; needed a whole number from 1 to 65,536."),
        ({"embedding": 2.5}, "embedding: got 2.5; needed a whole number from 1 to 65,536."),
        ({"layers": True}, "layers: got True; needed a whole number from 1 to 100."),
        ({"attention_dim": -1}, "attention_dim: got -1; needed a whole number from 1 to 65,536."),
        ({"hidden": 10**9 + 7, "heads": 10**9}, "hidden: got 1000000007; needed a whole number from 1 to 65,536."),
        ({"layers": 99_999_999}, "layers: got 99999999; needed a whole number from 1 to 100."),
        ({"unit": "rnn"}, "unit: got 'rnn'; needed one of gru, lstm. Write gru."),
        ({"cell": "luong"}, "cell: got 'luong'; needed one of bahdanau, conditional. Write bahdanau."),
        ({"attention": "softmax"}, f"attention: got 'softmax'; needed one of {', '.join(SCORES)}."),
        ({"attention": ["dot"]}, "attention: got ['dot']; needed one of"),
        ({"state_dropout": 1.0}, "state_dropout: got 1.0; needed a probability from 0 up to, not including, 1."),
        ({"word_dropout": -0.1}, "word_dropout: got -0.1; needed a probability"),
        ({"tied": 1}, "tied: got 1; needed true or false."),
        ({"heads": 3, "hidden": 8}, "heads: got 3; needed a divisor of hidden=8. Pass for example 2."),
        ({"heads": 4, "hidden": 15}, "heads: got 4; needed a divisor of hidden=15. Pass for example 3."),
        ({"heads": 9, "hidden": 7}, "heads: got 9; needed a divisor of hidden=7. Pass for example 7."),
        ({"heads": 2, "attention": "none"}, 'heads: got 2; needed 1 where attention is "none".'),
    ],
)
def test_a_wrong_value_is_named(choices, said):
    with pytest.raises(RegardError) as refusal:
        Architecture(**choices)
    assert str(refusal.value).startswith(said)


def test_the_default_is_equation_13():
    default = Architecture()
    assert (default.cell, default.attention, default.heads) == ("bahdanau", "additive", 1)
