"""Dask's arrays, imported by the first test that needs them: they need a quarter of a second."""

import pytest


@pytest.fixture(scope="session")
def da():
    import dask.array

    return dask.array
