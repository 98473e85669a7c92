"""Station 1: the weights of the shown query are the Gaussian, normalised."""

import math

import pytest

from regard.tour.stations.query import FIRST, WIDTH


def test_weights_are_the_kernel_over_its_sum(stations):
    samples, curve = stations["query"].tables
    kernel = [math.exp(-(((FIRST - x) / WIDTH) ** 2) / 2) for x, _, _ in samples.rows]
    assert [weight for *_, weight in samples.rows] == pytest.approx([k / sum(kernel) for k in kernel], abs=1e-12)
    expected = sum(k * y for k, (_, y, _) in zip(kernel, samples.rows, strict=True)) / sum(kernel)
    (output,) = (output for x, _, output in curve.rows if abs(x - FIRST) < 1e-9)
    assert output == pytest.approx(expected, abs=1e-12)


def test_the_page_draws_the_samples_of_the_table(stations):
    data = stations["query"].data
    assert [(x, y) for x, y, _ in stations["query"].tables[0].rows] == list(zip(data["x"], data["y"], strict=True))
