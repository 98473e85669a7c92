"""On a line queries are compared with the keys nearby, and nothing is lost by it."""

import pytest
import torch

from regard import inspect
from regard.regression import hat_matrix, inference, sums
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations

WIDTHS = (1e-5, 1 / 512, 5 / 512, 0.1, 3.0)


def drawn(dtype, weighted):
    """Keys on a grid, so that some are at the very edge of a window, some twice; two outputs."""
    torch.manual_seed(3)
    key = (100 + torch.rand(200, 1, dtype=torch.float64)).mul(512).round().div(512).to(dtype)
    weight = torch.randint(1, 4, (200,)).to(dtype) if weighted else None
    return Observations(key, torch.randn(200, 2, dtype=dtype), weight)


@pytest.mark.parametrize("kernel", sorted(sums.LINE_KERNELS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("weighted", "exclude"), [(False, None), (False, 2), (True, None), (True, 0)])
def test_lines_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype, weighted, exclude):
    data = drawn(dtype, weighted)
    own = None if exclude is None else torch.randperm(200)
    query = 99.8 + 1.4 * torch.rand(150, 1, dtype=dtype) if own is None else data.key[own]
    monkeypatch.setattr(hat_matrix, "NEIGHBOURS", 7)
    for width in WIDTHS:
        smoother = Smoother(data, kernel, width, degree=1)
        near = hat_matrix.local_lines(smoother, query, own, exclude or 0)
        with monkeypatch.context() as patch:
            patch.setattr(sums, "can_pool_on_line", lambda *_: False)
            everything = hat_matrix.local_lines(smoother, query, own, exclude or 0)
        assert torch.equal(near.lost, everything.lost)
        room = 1e4 * torch.finfo(dtype).eps
        torch.testing.assert_close(near.mean, everything.mean, rtol=room, atol=room)


@pytest.mark.parametrize("kernel", ["epanechnikov", "gaussian", "laplacian"])
def test_many_narrow_windows_are_not_compared_with_all_keys(monkeypatch, kernel):
    data = Observations(torch.rand(5000, 1, dtype=torch.float64), torch.randn(5000, 1, dtype=torch.float64))
    pairs = []

    def counted(query, key, *rest, **settings):
        pairs.append(len(query) * len(key))
        return inspect(query, key, *rest, **settings)

    monkeypatch.setattr(hat_matrix, "inspect", counted)
    hat_matrix.local_lines(Smoother(data, kernel, 1e-7, degree=1), data.key, torch.arange(5000))
    assert sum(pairs) < 1.1 * hat_matrix.NEIGHBOURS * 5000


def test_no_more_pairs_exist_at_once_than_are_allowed():
    smoother = Smoother(drawn(torch.float64, weighted=False), "epanechnikov", 0.2, degree=1)
    query = smoother.data.key
    parts = list(hat_matrix.nearby_keys(smoother, query, pairs=900))
    assert torch.cat([some for some, _ in parts]).sort().values.tolist() == list(range(200))
    for some, seen in parts:
        assert len(some) == 1 or len(some) * (seen.data.key.numel() + seen.data.value.numel()) <= 900
        apart = (query[some] - smoother.data.key.T).abs() < 0.2
        assert set(apart.any(0).nonzero().flatten().tolist()) <= set(seen.row.tolist())


@pytest.mark.parametrize("kernel", sorted(sums.LINE_KERNELS - {"boxcar"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_and_bands_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype):
    data = drawn(dtype, weighted=True)
    query = 99.9 + 1.2 * torch.rand(150, 1, dtype=dtype)
    sigma2 = torch.rand(200, 2, dtype=dtype)
    monkeypatch.setattr(hat_matrix, "NEIGHBOURS", 7)
    for width in WIDTHS[1:]:
        smoother = Smoother(data, kernel, width)
        near = inference.derivative(smoother, query)[0], inference._by_rows(smoother, query, sigma2)
        with monkeypatch.context() as patch:
            patch.setattr(hat_matrix, "SortedData", type(None))
            everything = inference._derivative_by_pairs(smoother, query), inference._by_rows(smoother, query, sigma2)
        for found, expected in zip(near, everything, strict=True):
            room = 1e3 * torch.finfo(dtype).eps * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(found, expected, rtol=0, atol=room)
