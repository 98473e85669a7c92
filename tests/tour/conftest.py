"""A whole walk on very little data, done once for all tests of the tour, in however many processes they run."""

import pickle

import pytest
from filelock import FileLock

from regard import tour


@pytest.fixture(scope="session")
def walked(tmp_path_factory, worker_id):
    """The visit, and all that it told."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent  # the parent is all processes'
    kept = shared / "walked.pickle"
    with FileLock(shared / "walked.lock"):
        if not kept.exists():
            told = []
            visit = tour.run(shared / "walked" / "tour", tour.QUICK, told.append)
            kept.write_bytes(pickle.dumps((visit, told)))
    return pickle.loads(kept.read_bytes())


@pytest.fixture(scope="session")
def visit(walked):
    return walked[0]


@pytest.fixture(scope="session")
def stations(visit):
    return {station.slug: station for station in visit.stations}
