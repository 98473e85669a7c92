"""`Limits`: what is refused at which length."""

import torch

from regard.translation.search.limits import Limits
from regard.translation.symbols import BEGIN, END, PAD


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
