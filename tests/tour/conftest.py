"""A whole walk on very little data, done once for all tests of the tour."""

import pytest

from regard import tour


@pytest.fixture(scope="session")
def walked(tmp_path_factory):
    """The visit, and all that it told."""
    told = []
    return tour.run(tmp_path_factory.mktemp("walked") / "tour", tour.QUICK, told.append), told


@pytest.fixture(scope="session")
def visit(walked):
    return walked[0]


@pytest.fixture(scope="session")
def stations(visit):
    return {station.slug: station for station in visit.stations}
