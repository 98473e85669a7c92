"""The tour's computation, done once for all its tests."""

import pytest

from regard.tour.fits import fit


@pytest.fixture(scope="session")
def fits():
    return fit()
