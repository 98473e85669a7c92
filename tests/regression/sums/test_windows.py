"""The window of a compact kernel ends where its own comparison says, and nowhere else."""

import pytest
import torch

from regard.regression.sums import Observations
from regard.regression.sums.line import SortedQueries
from regard.regression.sums.running_sums import comparison, window_ends
from regard.scores.kernels import KERNELS


def ends(key, query, name, width):
    data = Observations(key.unsqueeze(-1), torch.zeros(len(key), 1, dtype=key.dtype))
    line = data.sorted
    asked = SortedQueries.of(query.unsqueeze(-1), line, False)
    found = window_ends(asked, line, width, comparison(KERNELS[name], key.dtype))
    return line.key.to(key.dtype), asked.position.to(key.dtype), *found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("step", "steps"), [(0.1, 1), (0.1, 3), (0.01, 7), (1e-3, 10)])
def test_the_edge_of_a_boxcar_is_the_comparison_of_the_data(dtype, step, steps):
    """On a lattice nearly every window has a key within a rounding of its edge, and every key stands there twice."""
    key = (torch.arange(200, dtype=dtype) * step).repeat(2) + 1
    width = float(torch.tensor(step * steps, dtype=dtype))
    key, place, first, after = ends(key, key, "boxcar", width)
    inside = (place.unsqueeze(-1) - key).abs() <= width
    index = torch.arange(len(key))
    assert torch.equal(inside, (index >= first.unsqueeze(-1)) & (index < after.unsqueeze(-1)))
    counted = (place - width <= 1e9).sum()
    assert counted == len(place)


def test_keys_finer_than_the_rounding_of_their_distance():
    """In float32, 1e6 - k is 1e6 for a thousand distinct k: the end of the window is found by bisection."""
    key = torch.cat([torch.linspace(-0.1, 0.1, 1001), torch.tensor([5e5, 1e6])])
    query = torch.tensor([1e6, -1e6, 0.0])
    key, place, first, after = ends(key, query, "boxcar", 1e6)
    inside = (place.unsqueeze(-1) - key).abs() <= 1e6
    assert 0 < inside[-1].sum() < len(key)
    index = torch.arange(len(key))
    assert torch.equal(inside, (index >= first.unsqueeze(-1)) & (index < after.unsqueeze(-1)))


@pytest.mark.parametrize("name", ["triangular", "tricube"])
def test_the_others_vanish_at_the_edge(name):
    key = torch.arange(10, dtype=torch.float64)
    _, place, first, after = ends(key, key, name, 2.0)
    assert torch.equal(first, (place - 1).clamp(min=0).long())
    assert torch.equal(after, (place + 2).clamp(max=10).long())
