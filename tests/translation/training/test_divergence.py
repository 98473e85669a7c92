"""A training that has run away says so."""

import math

import pytest

from regard.errors import RegardError
from regard.translation.training.divergence import check_finite


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_refused(loss):
    with pytest.raises(RegardError) as refusal:
        check_finite(loss, "validation")
    assert str(refusal.value) == (
        f"learning_rate: got a loss of {loss} on the validation pairs: the training has diverged; needed a rate at "
        "which loss and weights stay finite. Lower it, for example to a tenth, and train into a new folder."
    )


def test_any_number_is_a_loss():
    check_finite(0.0, "training")
    check_finite(1e300, "training")
