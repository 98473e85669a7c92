"""One local cluster of two processes for all tests of this folder, and data with everything that can go wrong."""

import numpy as np
import pytest
import torch

ROWS = 311


@pytest.fixture(autouse=True)
def _default_device_without_values():
    """Whatever the default device is: tensors on the meta device have no values."""
    with torch.device("meta"):
        yield


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    from distributed import Client

    client = Client(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        memory_limit="2GiB",
        local_directory=tmp_path_factory.mktemp("cluster"),
        set_as_default=False,
    )
    with client:
        yield client


class Observed:
    """X (rows, dim), y (rows, 2), whole-number weights, some of them 0; as NumPy and in blocks that do not agree."""

    def __init__(self, da, dim, dtype=np.float64):
        self._da = da
        random = np.random.default_rng(7)
        self.X = random.normal(size=(ROWS, dim)).astype(dtype)
        noise = random.normal(size=(ROWS, 2)) * 0.1
        self.y = (np.stack([np.sin(3 * self.X.sum(1)), 5 + self.X[:, 0] ** 2], 1) + noise).astype(dtype)
        self.weight = random.integers(0, 4, ROWS).astype(dtype)
        inside, away = random.normal(size=(23, dim)), random.normal(size=(7, dim)) + 30
        self.query = np.concatenate([inside, away]).astype(dtype)

    @property
    def in_blocks(self):
        return self._da.from_array(self.X, chunks=(64, 1)), self._da.from_array(self.y, chunks=(100, 1))

    @property
    def weight_in_blocks(self):
        return self._da.from_array(self.weight, chunks=77)


@pytest.fixture(params=[1, 3])
def observed(da, request):
    return Observed(da, request.param)


@pytest.fixture
def on_a_line(da):
    return Observed(da, 1)
