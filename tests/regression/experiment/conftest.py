"""The experiment with few draws, computed once for all its tests."""

import pytest
import torch

from regard.regression.experiment import compute


@pytest.fixture(scope="session")
def experiment():
    """Whatever the default device is: tensors on the meta device have no values."""
    with torch.device("meta"):
        return compute(draws=3)
