"""`Alignment`: its shape and mass are checked, its links are the heaviest."""

import pytest
import torch
from tests.refuses import refuses

from regard.translation.alignments import Alignment

WEIGHTS = torch.tensor([[0.1, 0.7, 0.1], [0.4, 0.4, 0.1], [0.1, 0.1, 0.1]])


def alignment(weights=WEIGHTS):
    return Alignment(("the", "red", "house"), ("rotes", "das", "."), weights)


def test_from_tokens_merges_and_leaves_the_end_visible():
    weights = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.3, 0.3, 0.3], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float16)
    made = Alignment.from_tokens(
        weights.requires_grad_(),
        source_words=["a", "house"],
        target_words=["Haus"],
        source_word_of_each=[0, 1, 1],
        target_word_of_each=[0, 0],
    )
    assert made.weights[0].tolist() == pytest.approx([0.3, 0.5], abs=1e-3)
    assert made.unaligned.tolist() == pytest.approx([0.2], abs=1e-3)
    assert made.weights.dtype == torch.float32


def test_links_join_each_target_word_to_its_heaviest_source_word():
    assert alignment().links() == ((1, 0), (0, 1))
    assert alignment().links(threshold=0.5) == ((1, 0),)
    assert alignment().links(threshold=0.0) == ((1, 0), (0, 1), (0, 2))


def test_a_weight_of_exactly_the_threshold_is_a_link():
    even = alignment(torch.tensor([[0.25, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.2]]))
    assert even.links(threshold=0.25) == even.links() == ((0, 0), (1, 1))
    assert even.links(threshold=0.5) == ((1, 1),)


def test_an_empty_side_has_no_links():
    assert Alignment((), ("a",), torch.zeros(1, 0)).links() == ()
    assert Alignment(("a",), (), torch.zeros(0, 1)).links() == ()


@pytest.mark.parametrize(
    ("weights", "argument", "word"),
    [
        (torch.zeros(3, 4), "weights", "float32 (3, 4) on cpu"),
        (torch.full((3, 3), 0.5), "weights", "rows that sum to up to 1.5"),
        (WEIGHTS - 0.2, "weights", "entries from -0.1"),
        (torch.full((3, 3), float("nan")), "weights", "entries from nan"),
    ],
)
def test_what_is_no_attention_is_refused(weights, argument, word):
    with refuses(argument, word):
        alignment(weights)
