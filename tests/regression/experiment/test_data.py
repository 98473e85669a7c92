"""The chapter's data: where it lies, how it scatters, and that everybody gets the same."""

import math

import torch

from regard.regression.experiment import data


def test_truth_is_the_chapters_curve():
    x = torch.tensor([0.0, math.pi / 2, math.pi], dtype=torch.float64)
    expected = torch.tensor([0.0, 2 + math.pi / 2, math.pi], dtype=torch.float64)
    torch.testing.assert_close(data.truth(x), expected)


def test_samples_are_ordered_and_cover_the_interval():
    x, y = data.samples(2000)
    assert x.shape == y.shape == (2000,)
    assert (x.diff() >= 0).all()
    assert 0 <= x[0] < 0.02
    assert 3.98 < x[-1] <= 4


def test_noise_is_standard_normal():
    x, y = data.samples(20_000)
    noise = y - data.truth(x)
    assert abs(noise.mean()) < 4 / math.sqrt(20_000)
    assert abs(noise.std() - 1) < 4 / math.sqrt(2 * 20_000)


def test_a_seed_is_a_draw_whatever_the_global_generator_says():
    torch.manual_seed(1)
    first = data.samples(seed=5)
    torch.manual_seed(2)
    again = data.samples(seed=5)
    other = data.samples(seed=6)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_places_are_the_81_of_the_chapter():
    places = data.places()
    assert len(places) == 81
    torch.testing.assert_close(places.diff(), torch.full((80,), 0.05, dtype=torch.float64))
