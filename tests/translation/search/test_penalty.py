"""`penalty`: one at length 1, none at strength 0, growing with the length."""

import pytest
import torch

from regard.translation.search import penalty
from regard.translation.search.penalty import penalties


def test_values():
    assert penalty(1, 0.6) == 1.0
    assert penalty(40, 0.0) == 1.0
    assert penalty(13, 1.0) == 3.0
    assert penalty(torch.tensor([1.0, 19.0]), 0.5).tolist() == pytest.approx([1.0, 2.0])


def test_a_table_of_all_lengths():
    assert penalties(3, 0.7).tolist() == [penalty(length, 0.7) for length in range(4)]
