"""Station 8: heads switched off, and what that costs."""

from itertools import combinations

import pytest
import torch

from regard.tour.stations.heads import HEADS, PIXELS, Reader, load


def test_the_signal_is_there_without_a_download():
    images, digits = load()
    assert images.shape == (1797, PIXELS)
    assert 0 <= images.min() < images.max() <= 1
    assert sorted(digits.unique().tolist()) == list(range(10))


def test_a_head_brings_back_a_mean_place_and_ink():
    reader = Reader(heads=1).eval()
    images, _ = load()
    with torch.no_grad():
        weights = reader.weights(images[:5])[:, 0]
        along = torch.linspace(-1, 1, 8)
        rows, columns = along.repeat_interleave(8), along.repeat(8)
        seen = torch.stack([weights @ rows, weights @ columns, (weights * images[:5]).sum(-1)], -1)
        # Projections are linear: the output is that of the seen triple alone, over a single key.
        alike = reader.layer(reader.query.expand(5, 1, -1), torch.zeros(5, 1, 32), seen[:, None])[:, 0]
        torch.testing.assert_close(reader(images[:5]), alike, rtol=1e-4, atol=1e-5)


def test_every_set_of_heads_is_measured(stations):
    data = stations["heads"].data
    sets = {"".join(map(str, off)) for size in range(HEADS + 1) for off in combinations(range(HEADS), size)}
    assert set(data["accuracy"]) == set(data["said"]) == sets
    assert all(count == 600 and low <= share <= high for share, low, high, count in data["accuracy"].values())


def test_without_heads_every_digit_is_read_alike(stations):
    assert len(set(stations["heads"].data["said"]["0123"])) == 1


def test_maps_are_weights(stations):
    for image in stations["heads"].data["weights"]:
        for head in image:
            assert len(head) == PIXELS
            assert sum(head) == pytest.approx(1, abs=0.01)
