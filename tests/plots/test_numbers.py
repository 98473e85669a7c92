"""Numbers to draw become float64; what is none is refused by name, or NaN."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.plots.numbers import as_array, as_number


@pytest.mark.parametrize("given", [[1, 2, 3], np.arange(1, 4), torch.tensor([1, 2, 3]), (1.0, 2.0, 3.0)])
def test_everything_becomes_float64(given):
    array = as_array("x", given, axes=("count",))
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("given", ["words", [[1.0], [1.0, 2.0]], [], np.zeros((2, 0)), 3.0, {"a": 1}])
def test_everything_else_is_refused(given):
    with refuses("x", "numbers", "count", "least"):
        as_array("x", given, axes=("count",))


def test_lists_of_tensors_of_any_kind_and_sparse_ones():
    rows = [torch.tensor([0.5, 0.25], requires_grad=True).bfloat16()] * 3
    np.testing.assert_array_equal(as_array("weights", rows, axes=("queries", "keys")), [[0.5, 0.25]] * 3)
    np.testing.assert_array_equal(as_array("weights", torch.eye(3).to_sparse(), axes=("queries", "keys")), np.eye(3))


@pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.array(2), torch.ones(()).bfloat16() * 2])
def test_a_number_of_any_library_is_a_float(given):
    assert type(as_number(given)) is float
    assert as_number(given) == 2.0


@pytest.mark.parametrize("given", [None, "2", True, np.True_, 2j, [2.0], np.ones(1), torch.ones(2), Fraction(10**400)])
def test_what_is_no_single_number_lies_in_no_range(given):
    assert np.isnan(as_number(given))
