"""A training that has run away says so."""

import math

import pytest
from tests.refuses import refuses

from regard.translation.training.divergence import check_finite


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_refused(loss):
    with refuses("learning_rate", f"a loss of {loss} on the validation pairs"):
        check_finite(loss, "validation")


def test_any_number_is_a_loss():
    check_finite(0.0, "training")
    check_finite(1e300, "training")
