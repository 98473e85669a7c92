"""Charts of the page stand where their numbers are."""

import re
from xml.etree import ElementTree

import pytest

from regard.tour.charts import Bar, Bars, Curves, Series
from regard.tour.page.drawing import BOTTOM, CHARACTER, HEIGHT, LEFT, NAMES, NUMBERS, RIGHT, TOP, WIDTH, render, ticks

SERIES = Series("one <b>", [(1, 0.1), (10, 1.0), (100, 0.5)], "c0", [(1, 0.0, 0.2), (100, 0.4, 0.6)], marks=True)


def parsed(chart):
    return ElementTree.fromstring(f"<div>{render(chart, 'what it <shows>')}</div>")


def curves(**more):
    return Curves([SERIES], (1, 100), (0, 1), "x", "y", log_x=True, **more)


def test_marks_stand_at_their_numbers():
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in parsed(curves()).iter("circle")]
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert circles[0] == pytest.approx((LEFT, HEIGHT - BOTTOM - 0.1 * (HEIGHT - BOTTOM - TOP)))
    assert circles[1] == pytest.approx((middle, TOP))
    assert circles[2][0] == pytest.approx(WIDTH - RIGHT)


def test_each_axis_has_its_own_label_where_its_axis_is():
    """The label of x is below the right end of its axis, that of y above the left end of its own."""
    labels = {text.text: text for text in parsed(curves()).iter("text") if "label" in text.get("class")}
    assert labels.keys() == {"x", "y"}
    assert float(labels["x"].get("y")) > HEIGHT - BOTTOM
    assert float(labels["x"].get("x")) == WIDTH - RIGHT
    assert float(labels["y"].get("y")) < TOP
    assert float(labels["y"].get("x")) < LEFT


def test_ticks_stand_at_their_numbers_and_larger_is_higher():
    ticks = [text for text in parsed(curves()).iter("text") if "tick" in text.get("class")]
    heights = {float(t.text): float(t.get("y")) - 4 for t in ticks if float(t.get("x")) < LEFT}
    assert heights == {
        value: pytest.approx(HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP), abs=0.01) for value in heights
    }
    assert len(heights) > 3
    assert heights[1] == TOP
    across = {float(t.text): float(t.get("x")) for t in ticks if float(t.get("x")) >= LEFT}
    assert across == {1.0: LEFT, 10.0: pytest.approx((LEFT + WIDTH - RIGHT) / 2), 100.0: WIDTH - RIGHT}


def test_a_band_is_drawn_from_its_lower_to_its_upper_ends():
    (band,) = (path for path in parsed(curves()).iter("path") if "band" in path.get("class"))
    corners = [tuple(map(float, pair.split(","))) for pair in re.split("[MLZ]", band.get("d")) if pair]
    high = HEIGHT - BOTTOM - TOP
    left, right = LEFT, WIDTH - RIGHT
    expected = [(left, 0.0), (right, 0.4), (right, 0.6), (left, 0.2)]
    assert corners == [(x, pytest.approx(HEIGHT - BOTTOM - y * high, abs=0.01)) for x, y in expected]
    area = sum(a * d - b * c for (a, b), (c, d) in zip(corners, [*corners[1:], corners[0]], strict=True)) / 2
    assert abs(area) == pytest.approx(0.2 * high * (right - left), rel=1e-3)


def test_text_is_escaped_and_the_picture_has_a_name():
    page = parsed(curves())
    assert page.find("svg").get("aria-label") == "what it <shows>"
    assert [key.text for key in page.iter("span")] == ["one <b>"]


def test_a_marker_knows_its_places():
    (marker,) = (line for line in parsed(curves(places=(1, 10, 100))).iter("line") if "marker" in line.get("class"))
    places = [float(place) for place in marker.get("data-places").split()]
    assert places == pytest.approx([LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT])


def test_nothing_is_drawn_outside():
    beyond = Curves([Series("", [(0, -5), (4, 9)], "c1")], (0, 4), (0, 1), "x", "y")
    (path,) = (path for path in parsed(beyond).iter("path"))
    heights = [float(pair.split(",")[1]) for pair in re.split("[ML]", path.get("d"))[1:]]
    assert heights == [HEIGHT - BOTTOM, TOP]


def test_bars_are_as_long_as_their_numbers():
    page = parsed(Bars([Bar("a", 1.0, 0, 0, "1"), Bar("b", 0.5, 0.4, 0.6, "½")], 1.0))
    long = [float(bar.get("width")) for bar in page.iter("rect")]
    assert long == pytest.approx([WIDTH - NUMBERS - NAMES, (WIDTH - NUMBERS - NAMES) / 2])
    (whisker,) = page.iter("line")
    assert float(whisker.get("x2")) - float(whisker.get("x1")) == pytest.approx(0.2 * long[0])


def test_long_names_of_bars_have_room():
    short, name = Bar("a", 1.0, 0, 0, "1"), "textbook as a product, torch.compile"
    page = parsed(Bars([short, Bar(name, 0.5, 0, 0, "½")], 1.0))
    starts = {float(bar.get("x")) for bar in page.iter("rect")}
    assert [*starts] == pytest.approx([8 + CHARACTER * len(name)])


@pytest.mark.parametrize(("low", "high", "log"), [(0, 1, False), (-2, 6, False), (0, 0.6, False), (1e-8, 1, True)])
def test_ticks_are_few_and_inside(low, high, log):
    found = ticks(low, high, log)
    assert 3 <= len(found) <= 7
    assert low <= found[0] < found[-1] <= high
