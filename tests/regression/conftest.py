"""Dask's arrays and a cluster, imported by the first test that needs them, and small files to regress."""

import numpy as np
import pytest

ROWS = 311


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


@pytest.fixture(scope="session")
def da():
    import dask.array

    return dask.array


@pytest.fixture
def noisy(tmp_path):
    """120 rows of y = sin(x) + noise beside a second x, a count and a text."""
    generator = np.random.default_rng(7)
    x, other = generator.uniform(0, 6, (2, 120))
    y = np.sin(x) + 0.3 * generator.normal(size=120)
    path = tmp_path / "noisy.csv"
    rows = [f"{a!r},{b!r},{c!r},{1 + i % 2},n{i}" for i, (a, b, c) in enumerate(np.stack([x, other, y], -1).tolist())]
    path.write_text("x,other,y,count,name\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path
