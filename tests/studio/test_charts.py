"""Where the regression room draws its points, axes, curve and band: read from the SVG in a real browser."""

import re

import numpy as np
import pytest
from tests.studio.browser import needs_chromium

from regard.regression import NadarayaWatson

needs_chromium()

X = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
Y = [10.0, 14.0, 11.0, 30.0, 17.0, 22.0, 26.0]


@pytest.fixture
def fit(opened, tmp_path):
    """The page with the plot of a file whose columns have names of their own."""
    file = tmp_path / "data.csv"
    file.write_text("time,height\n" + "".join(f"{x},{y}\n" for x, y in zip(X, Y, strict=True)), encoding="utf-8")
    page = opened("#regression?query=3&level=0.9")
    page.locator("#fit-file").set_input_files(file)
    page.wait_for_selector("#fit text.title:has-text('time')", state="attached")  # the frame of the file, not the first
    page.wait_for_selector("#fit-words:has-text('90% band')")
    page.wait_for_selector("#fit .banded:not(.stale)[d^=M]", state="attached")
    return page


def texts(page):
    """Every text of the plot: (text, x, y, whether it is a title)."""
    read = "all => all.map(t => [t.textContent, +t.getAttribute('x'), +t.getAttribute('y'), t.matches('.title')])"
    return [tuple(text) for text in page.locator("#fit text").evaluate_all(read)]


def scales(page):
    """From numbers to pixels, across and up, by the tick labels of both axes alone."""
    numbers = [(float(t.replace("−", "-")), x, y) for t, x, y, title in texts(page) if not title and t]
    lowest = max(y for _, _, y in numbers)
    across = sorted((value, x) for value, x, y in numbers if y == lowest)
    left = min(x for _, x, _ in numbers)
    base = next(y for t, _, y, _ in texts(page) if t == "weight at the query")  # below it the axis of the weights
    up = sorted((value, y - 4) for value, x, y in numbers if x == left and y < base)
    assert len(across) > 3
    assert len(up) > 3
    lines = [np.polyfit(*zip(*ticks, strict=True), 1) for ticks in (across, up)]
    for line, ticks in zip(lines, (across, up), strict=True):
        np.testing.assert_allclose(np.polyval(line, [v for v, _ in ticks]), [at for _, at in ticks], atol=0.01)
    return lambda x: np.polyval(lines[0], x), lambda y: np.polyval(lines[1], y)


def path(page, selector):
    """The points of a path: (n, 2)."""
    drawn = "".join(page.locator(selector).evaluate_all("all => all.map(path => path.getAttribute('d')).join('')"))
    return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn)])


def test_points_stand_at_their_numbers_and_larger_is_higher(fit):
    across, up = scales(fit)
    drawn = path(fit, "#fit .points, #fit .heavy")
    drawn = drawn[drawn[:, 0].argsort()]
    np.testing.assert_allclose(drawn, np.stack([across(np.array(X)), up(np.array(Y))], -1), atol=0.02)
    highest, lowest = drawn[Y.index(max(Y))], drawn[Y.index(min(Y))]
    assert highest[1] < lowest[1] - 50  # pixels are counted downwards
    assert (np.diff(drawn[:, 0]) > 20).all()


def test_each_axis_has_its_own_name(fit):
    titles = {text: (x, y) for text, x, y, title in texts(fit) if title}
    assert titles.keys() == {"time", "height", "weight at the query"}
    drawn = path(fit, "#fit .points, #fit .heavy")
    assert titles["time"][1] > drawn[:, 1].max()  # below everything
    assert titles["time"][0] > drawn[:, 0].max() - 5  # at the right end
    assert titles["height"][1] < drawn[:, 1].min()  # above everything
    assert titles["height"][0] < drawn[:, 0].min()  # at the left


def test_curve_and_band_stand_at_the_estimators_numbers(fit):
    across, up = scales(fit)
    width = float(fit.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('width')"))
    curve, band = path(fit, "#fit .fitted"), path(fit, "#fit .banded")
    low, high = (
        np.polyval(np.polyfit(across(np.array([0.0, 1.0])), [0.0, 1.0], 1), edge) for edge in curve[[0, -1], 0]
    )
    places = np.linspace(low, high, len(curve))[:, None]
    expected = NadarayaWatson("gaussian", width).fit(np.array(X)[:, None], np.array(Y)).confidence_band(places, 0.9)
    np.testing.assert_allclose(curve[:, 1], up(expected.mean), atol=0.5)
    upper, lower = band[: len(curve)], band[len(curve) :][::-1]
    np.testing.assert_allclose(upper[:, 1], up(expected.upper), atol=1.0)
    np.testing.assert_allclose(lower[:, 1], up(expected.lower), atol=1.0)
    assert (upper[:, 1] < lower[:, 1]).all()
    assert area(band) > 1000


def area(corners):
    """Of a polygon, in square pixels."""
    x, y = corners.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
