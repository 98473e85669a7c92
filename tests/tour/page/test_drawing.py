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
