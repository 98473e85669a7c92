"""Batch axes fold into two, and what is shared stays shared."""

import torch

from regard.backends.fused.batches import fold, groups_of


def test_neighbours_that_are_shared_alike_are_one_group():
    query, key = torch.empty(2, 3, 4, 5, 7), torch.empty(2, 1, 1, 6, 7)
    assert groups_of((2, 3, 4), [query, query]) == [[0, 1, 2]]
    assert groups_of((2, 3, 4), [query, key]) == [[0], [1, 2]]
    assert groups_of((2, 3, 4), [query, torch.empty(1, 3, 1, 6, 7)]) == [[0], [1], [2]]
    assert groups_of((1, 1), [torch.empty(1, 1, 5, 7)]) == []


def test_a_fold_keeps_the_order_and_copies_nothing():
    query, key = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5, 1), torch.arange(2.0).reshape(2, 1, 1, 1, 1)
    groups = groups_of((2, 3, 4), [query, key])
    folded, shared = fold(query, groups), fold(key, groups)
    assert folded.shape == (2, 12, 5, 1)
    assert shared.shape == (2, 1, 1, 1)
    assert folded.data_ptr() == query.data_ptr()
    assert torch.equal(folded.flatten(), query.flatten())
