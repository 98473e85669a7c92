"""On a line queries are compared with the keys nearby, and nothing is lost by it."""

import pytest
import torch

from regard import inspect
from regard.regression import hat_matrix, inference
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.names import KERNEL_SCORES

WIDTHS = (1e-5, 1 / 512, 5 / 512, 0.1, 3.0)


def drawn(dtype, weighted):
    """Keys on a grid, so that some are at the very edge of a window, some twice; two outputs."""
    torch.manual_seed(3)
    key = (100 + torch.rand(200, 1, dtype=torch.float64)).mul(512).round().div(512).to(dtype)
    weight = torch.randint(1, 4, (200,)).to(dtype) if weighted else None
    return Observations(key, torch.randn(200, 2, dtype=dtype), weight)


@pytest.mark.parametrize("kernel", sorted(KERNEL_SCORES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("weighted", "exclude"), [(False, None), (False, 2), (True, None), (True, 0)])
def test_lines_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype, weighted, exclude):
    data = drawn(dtype, weighted)
    own = None if exclude is None else torch.randperm(200)
    query = 99.8 + 1.4 * torch.rand(150, 1, dtype=dtype) if own is None else data.key[own]
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 5000)
    for width in WIDTHS:
        task = Smoother(data, kernel, width, degree=1).task(query)._replace(leave_out=exclude)
        near = hat_matrix.local_lines(task, own)
        with monkeypatch.context() as patch:
            patch.setattr(hat_matrix, "_windows", lambda *_: None)
            everything = hat_matrix.local_lines(task, own)
        assert torch.equal(near.needs_exact, everything.needs_exact)
        room = 1e4 * torch.finfo(dtype).eps
        torch.testing.assert_close(near.mean, everything.mean, rtol=room, atol=room)


@pytest.mark.parametrize("kernel", ["epanechnikov", "gaussian", "laplacian"])
def test_many_narrow_windows_are_not_compared_with_all_keys(monkeypatch, kernel):
    data = Observations(torch.rand(5000, 1, dtype=torch.float64), torch.randn(5000, 1, dtype=torch.float64))
    pairs = []

    def counted(query, key, *rest, **settings):
        pairs.append(key.shape[:-1].numel() if key.ndim == 3 else len(query) * len(key))
        return inspect(query, key, *rest, **settings)

    monkeypatch.setattr(hat_matrix, "inspect", counted)
    task = Smoother(data, kernel, 1e-7, degree=1).task(data.key)._replace(leave_out=0)
    hat_matrix.local_lines(task, torch.arange(5000))
    assert sum(pairs) < 16 * 5000


@pytest.mark.parametrize("width", [0.02, 0.9])
def test_no_more_pairs_exist_at_once_than_are_allowed(monkeypatch, width):
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 900)
    task = Smoother(drawn(torch.float64, weighted=False), "epanechnikov", width, degree=1).task
    query, data = drawn(torch.float64, weighted=False).key, drawn(torch.float64, weighted=False)
    parts = list(hat_matrix.nearby_keys(task(query)))
    assert torch.cat([some for some, _ in parts]).sort().values.tolist() == list(range(200))
    for some, block in parts:
        entries = block.row.numel() * 3 if block.padding is not None else len(some) * block.row.numel() * 3
        assert len(some) == 1 or entries <= 900
        for place, position in enumerate(some.tolist()):
            near = ((query[position] - data.key[:, 0]).abs() < width).nonzero().flatten().tolist()
            seen = block.row if block.padding is None else block.row[place][~block.padding[place]]
            assert set(near) <= set(seen.tolist())


@pytest.mark.parametrize("kernel", sorted(KERNEL_SCORES.keys() - {"boxcar"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_and_bands_of_the_keys_nearby_are_those_of_all_keys(monkeypatch, kernel, dtype):
    data = drawn(dtype, weighted=True)
    query = 99.9 + 1.2 * torch.rand(150, 1, dtype=dtype)
    sigma2 = torch.rand(200, 2, dtype=dtype)
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 5000)

    def derivative_and_variance():
        return inference._derivative_by_pairs(smoother, query)[0], inference._variance_by_rows(smoother, task, sigma2)

    for width in WIDTHS[1:]:
        smoother = Smoother(data, kernel, width)
        task = smoother.task(query)
        near = inference.derivative(smoother, query)[0], derivative_and_variance()[1]
        with monkeypatch.context() as patch:
            patch.setattr(hat_matrix, "_windows", lambda *_: None)
            everything = derivative_and_variance()
        for found, expected in zip(near, everything, strict=True):
            room = 1e3 * torch.finfo(dtype).eps * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(found, expected, rtol=0, atol=room)
