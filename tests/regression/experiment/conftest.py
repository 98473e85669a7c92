"""The experiment with few draws, computed once for all its tests."""

import pytest

from regard.regression.experiment import compute


@pytest.fixture(scope="session")
def experiment():
    return compute(draws=3)
