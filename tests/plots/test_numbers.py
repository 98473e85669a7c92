"""`as_array`: what can be drawn becomes float64, and the rest is refused by name."""

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.plots.numbers import as_array


@pytest.mark.parametrize("given", [[1, 2, 3], np.arange(1, 4), torch.tensor([1, 2, 3]), (1.0, 2.0, 3.0)])
def test_everything_becomes_float64(given):
    array = as_array("x", given, axes=("count",))
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("given", ["words", [[1.0], [1.0, 2.0]], [], np.zeros((2, 0)), 3.0, {"a": 1}])
def test_everything_else_is_refused(given):
    with pytest.raises(RegardError, match=r"^x: got .*; needed numbers of shape \(count\), at least one"):
        as_array("x", given, axes=("count",))


def test_lists_of_tensors_of_any_kind_and_sparse_ones():
    rows = [torch.tensor([0.5, 0.25], requires_grad=True).bfloat16()] * 3
    np.testing.assert_array_equal(as_array("weights", rows, axes=("queries", "keys")), [[0.5, 0.25]] * 3)
    np.testing.assert_array_equal(as_array("weights", torch.eye(3).to_sparse(), axes=("queries", "keys")), np.eye(3))
