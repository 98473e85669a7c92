"""Figures that a test has made through pyplot are closed after it."""

import pytest


@pytest.fixture
def close_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")
