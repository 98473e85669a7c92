"""Running sums with factors against a plain loop, across blocks and chunks, in both directions."""

import pytest
import torch

from regard.regression.sums import running_sums
from regard.regression.sums.running_sums import rows_by_chunk, segmented_scan


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 255, 300, 4500])
def test_running_sums_are_those_of_a_loop(keys, backward, monkeypatch):
    monkeypatch.setattr(running_sums, "CHUNK", 1024)
    terms, factor = torch.randn(3, keys, dtype=torch.float64), torch.rand(keys, dtype=torch.float64)
    factor[torch.rand(keys) < 0.1] = 0.0
    loop, before = torch.empty_like(terms), torch.zeros(3, dtype=torch.float64)
    for key in reversed(range(keys)) if backward else range(keys):
        before = loop[:, key] = terms[:, key] + factor[key] * before
    position = torch.arange(-1, keys + 1)
    found = torch.full((3, keys + 2), torch.nan, dtype=torch.float64)
    ranges = rows_by_chunk(position, keys, 3, backward)
    chunks = segmented_scan(lambda chunk: chunk.arrange(terms[:, chunk.rows]), factor, 3, reverse=backward)
    for (chunk, sums), rows in zip(chunks, ranges, strict=True):
        found[:, rows] = sums[:, chunk.find(position[rows].clamp(0, keys - 1))]
    assert torch.allclose(found[:, 1:-1], loop, rtol=0, atol=1e-12)
    assert torch.equal(found[:, [0, -1]], found[:, [1, -2]])


def test_a_factor_of_zero_forgets_everything_before():
    terms = torch.ones(1, 100, dtype=torch.float64)
    terms[:, :50] = 1e300
    factor = torch.ones(100, dtype=torch.float64)
    factor[50] = 0.0
    ((chunk, sums),) = segmented_scan(lambda chunk: chunk.arrange(terms[:, chunk.rows]), factor, 1, reverse=False)
    assert sums[0, chunk.find(torch.tensor(99))] == 50
