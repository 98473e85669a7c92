"""Station 10: every erratum is shown by a line that runs, and the line shows it."""

from regard.tour.stations.errata import LINES, demonstrate


def test_every_correction_of_the_chapter_has_its_line():
    assert list(LINES) == list("abcdefghi")


def test_the_lines_show_what_they_should():
    found = {one.letter: one.result for one in demonstrate()}
    assert found["a"] == "[-5.0, 5.0, -5.0]", "the distance, as printed, as corrected"
    printed, corrected = map(float, found["b"].strip("[]").split(","))
    assert printed < 0.1 < 1.5 < corrected
    assert found["c"] == "[0.5, 0.75]"
    assert found["d"] == "(2, 3)"
    assert found["e"] == "1.0"
    assert found["f"] == "[1.0], (12, 12)"
    assert found["g"] == "1.0"
    assert found["h"] == "-1.0"
    assert found["i"] == "(2, 5)"


def test_the_page_shows_the_line_that_ran(visit, stations):
    page = visit.page.read_text(encoding="utf-8")
    for line in LINES.values():
        assert f"<code>{line}</code>".replace("'", "&#x27;") in page
