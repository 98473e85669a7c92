"""What a step function may return: shapes, sums and numbers."""

import torch
from tests.refuses import refuses

from regard.translation.search.step import check_normalised, check_numbers, check_shape


def test_a_row_for_every_token():
    check_shape(torch.zeros(2, 3, 5), 2, 3)
    with refuses("log_probabilities", "(2, 5)"):
        check_shape(torch.zeros(2, 5), 2, 1)
    with refuses("log_probabilities", "batch 3", "beams 2"):
        check_shape(torch.zeros(2, 3, 5), 3, 2)


def test_probabilities_may_miss_some_but_not_exceed_one():
    words = torch.randn(3, 2, 1000).log_softmax(-1)
    check_normalised(words)
    check_normalised(words.bfloat16())
    check_normalised(words.masked_fill(torch.rand_like(words) < 0.5, -torch.inf))
    check_normalised(words[:0])
    with refuses("log_probabilities", "most 1", "log_softmax"):
        check_normalised(words + 0.2)


def test_who_met_a_nan_is_named_by_its_place_in_the_batch():
    check_numbers(torch.tensor([False, False]), torch.tensor([3, 8]), 4)
    with refuses("log_probabilities", "first 4"):
        check_numbers(torch.tensor([False, True]), torch.tensor([3, 8]), 4)
