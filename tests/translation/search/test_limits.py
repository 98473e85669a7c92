"""`Limits`: what is refused at which length."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.translation.search.limits import Limits
from regard.translation.vocabulary import BEGIN, END, PAD


def test_refuses_forbidden_words_and_early_ends():
    limits = Limits.checked(2, 3, 9, (PAD, BEGIN), "cpu")
    words = torch.tensor([[PAD, END], [4, BEGIN]])
    assert limits.refused(words, 2).tolist() == [[True, True], [False, True]]
    assert limits.refused(words, 3).tolist() == [[True, False], [False, True]]
    assert (limits.spare(2), limits.spare(3)) == (3, 2)


def test_one_length_serves_all_and_rows_can_be_kept():
    assert Limits.checked(3, 0, 9, (), "cpu").longest.tolist() == [9, 9, 9]
    limits = Limits.checked(3, 0, torch.tensor([4, 7, 5], dtype=torch.int32), (), "cpu")
    assert limits.most == 7
    assert limits.keep(torch.tensor([0, 2])).longest.tolist() == [4, 5]
    assert not limits.refused(torch.tensor([[PAD, END]]), 1).any()


def test_whole_numbers_of_numpy_are_lengths():
    limits = Limits.checked(2, np.int64(3), np.int64(3), (), "cpu")
    assert (limits.shortest, limits.most, limits.longest.tolist()) == (3, 3, [3, 3])


def test_a_sentence_with_its_own_longest_length_may_be_cut_off_before_the_shortest():
    assert Limits.checked(2, 5, torch.tensor([3, 9]), (), "cpu").longest.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("shortest", "longest", "argument", "word"),
    [
        (100_001, 9, "shortest", "100001"),
        (10**20, 9, "shortest", "1"),
        (1.5, 9, "shortest", "1.5"),
        (5, 3, "longest", "at least 5, the shortest length"),
        (0, 100_001, "longest", "100001"),
        (0, np.int64(100_001), "longest", "100001"),
        (0, "9", "longest", "a length of at least 1"),
        (0, None, "longest", "None"),
        (0, True, "longest", "True"),
    ],
)
def test_what_is_no_length_is_refused(shortest, longest, argument, word):
    with refuses(argument, word):
        Limits.checked(1, shortest, longest, (), "cpu")
