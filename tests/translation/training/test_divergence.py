"""A training that has diverged is stopped."""

import math

import pytest
from tests.refuses import refuses

from regard.translation.training.divergence import MAX_LOSS, check_loss


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 2 * MAX_LOSS])
def test_loss_that_is_not_a_number_or_too_large_is_refused(loss):
    with refuses("learning_rate", "on the validation pairs: the training has diverged"):
        check_loss(loss, "validation")


@pytest.mark.parametrize("loss", [0.0, 10.0, MAX_LOSS])
def test_finite_loss_is_accepted(loss):
    check_loss(loss, "training")
