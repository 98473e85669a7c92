"""`merge_to_words`: sums over source tokens, means over target tokens, END and blanks in no word."""

import pytest
import torch
from tests.refuses import refuses

from regard.translation.alignments import merge_to_words


def test_against_loops():
    weights = torch.rand(7, 5).softmax(-1)
    target, source = [0, 0, 1, -1, 2, 2, 2], [0, 1, 1, -1, 2]
    merged = merge_to_words(weights, target, source)
    assert merged.shape == (3, 3)
    for word in range(3):
        rows = [row for row, its in enumerate(target) if its == word]
        for other in range(3):
            columns = [column for column, its in enumerate(source) if its == other]
            wanted = sum(float(weights[row, column]) for row in rows for column in columns) / len(rows)
            assert float(merged[word, other]) == pytest.approx(wanted)


def test_a_whole_row_stays_whole_but_for_end():
    weights = torch.rand(4, 6).softmax(-1)
    merged = merge_to_words(weights, [0, 0, 1], [0, 0, 1, 2, 2])
    torch.testing.assert_close(merged.sum(1), torch.stack([1 - weights[:2, 5].mean(), 1 - weights[2, 5]]))
    torch.testing.assert_close(merged, merge_to_words(weights, [0, 0, 1, -1], [0, 0, 1, 2, 2, -1]))


def test_words_without_tokens_have_no_weight():
    merged = merge_to_words(torch.ones(1, 1), [1], [0], target_count=3, source_count=2)
    assert merged.tolist() == [[0, 0], [1, 0], [0, 0]]


def test_nothing_gives_nothing():
    assert merge_to_words(torch.ones(1, 2) / 2, [], [0]).shape == (0, 1)


@pytest.mark.parametrize(
    ("weights", "target", "source", "argument", "word"),
    [
        (torch.ones(3), [0], [0], "weights", "float32 (3,) on cpu"),
        (torch.ones(2, 2), [0, 0, 0], [0], "target_words", "words of 3 tokens"),
        (torch.ones(2, 2), [0], [], "source_words", "words of 0 tokens"),
        (torch.ones(2, 2), [0, -2], [0], "target_words", "numbers from -2 to 0"),
    ],
)
def test_bad_arguments_are_named(weights, target, source, argument, word):
    with refuses(argument, word):
        merge_to_words(weights, target, source)


def test_a_word_beyond_the_count_is_named():
    with refuses("source_words", "from 0", "to 2", "1 to"):
        merge_to_words(torch.ones(1, 3), [0], [0, 1, 2], source_count=2)
