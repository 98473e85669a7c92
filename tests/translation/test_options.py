"""Whole numbers as users write them, and the refusal of everything else."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.translation.options import count_of


@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_any_type_of_whole_number_is_an_int(given):
    count = count_of("size", given, least=1, most=3, needed="1 to 3", repair="Leave it out.")
    assert (type(count), count) == (int, 3)


@pytest.mark.parametrize("given", [0, 4, 10**20, 2.0, np.float32(2), "2", None, True, [2], torch.tensor(2.0)])
def test_anything_else_is_named(given):
    with refuses("size", repr(given), "1 to 3. Leave it out."):
        count_of("size", given, least=1, most=3, needed="1 to 3", repair="Leave it out.")
