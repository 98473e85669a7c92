"""Station 2: errors with their intervals, and the widths of the shown draw."""

import math

import numpy as np
import pytest

from regard.regression.experiment import data
from regard.scores.names import KERNEL_SCORES
from regard.tour import QUICK


def gaussian_error(seed):
    """Eq. 4 at width 1 in NumPy: the mean squared error of one draw on the 81 places."""
    x, y, places = (numbers.numpy() for numbers in (*data.samples(seed=seed), data.places()))
    kernel = np.exp(-((places[:, None] - x) ** 2) / 2)
    return np.mean((kernel @ y / kernel.sum(1) - (2 * np.sin(places) + places)) ** 2)


def test_two_bars_a_kernel_with_the_numbers_of_the_table(stations):
    bars = stations["width"].charts["kernels"].bars
    rows = {(row[0], row[1]): row[3:] for row in stations["width"].tables[0].rows}
    assert len(bars) == 2 * len(KERNEL_SCORES)
    for place, kernel in enumerate(KERNEL_SCORES):
        for bar, at in zip(bars[2 * place : 2 * place + 2], ("1", "leave-one-out"), strict=True):
            mean, half = rows[kernel, at]
            assert (bar.value, bar.low, bar.high) == pytest.approx((mean, mean - half, mean + half))
            assert bar.text == f"{mean:.3f} ± {half:.3f}"


def test_errors_are_means_over_draws_with_their_interval(stations):
    errors = [gaussian_error(seed) for seed in range(QUICK.draws)]
    row = stations["width"].tables[0].rows[0]
    assert row[:2] == ("gaussian", "1")
    assert row[3] == pytest.approx(np.mean(errors), rel=1e-9)
    assert row[4] == pytest.approx(1.959964 * np.std(errors, ddof=1) / math.sqrt(QUICK.draws), rel=1e-5)


def test_the_prose_says_how_many_times_the_worst_error_is_the_best(stations):
    width = stations["width"]
    for fact, at in (("factor.one", "1"), ("factor.own", "leave-one-out")):
        errors = [row[3] for row in width.tables[0].rows if row[1] == at]
        assert float(width.facts[fact]) == pytest.approx(max(errors) / min(errors), rel=0.05)
        assert float(width.facts[fact]) > 1
    assert width.facts["draws"] == str(QUICK.draws)


def test_the_middle_stop_is_the_leave_one_out_width(stations):
    width = stations["width"]
    best = width.data["own"]["gaussian"]
    assert float(width.facts["best"]) == pytest.approx(math.log10(best), abs=1e-3)
    assert [float(beat.partition("width=")[2]) for beat in width.beats[:3]] == pytest.approx(
        [math.log10(0.02), math.log10(best), math.log10(5)], abs=1e-3
    )
    x, y = (numbers.numpy() for numbers in data.samples())

    def left_out(h):
        kernel = np.exp(-((x[:, None] - x) ** 2) / (2 * h * h))
        np.fill_diagonal(kernel, 0)
        return np.mean((kernel @ y / kernel.sum(1) - y) ** 2)

    assert left_out(best) < min(left_out(best / 1.3), left_out(best * 1.3))
