"""The page is one file, whole, and asks nobody for anything."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from tests.refuses import refuses

from regard.tour.charts import Bar, Bars
from regard.tour.page.assembling import as_json, fill, section
from regard.tour.station import Station, Table

VOID = {"meta", "link", "input", "br", "img"}
LONGEST_SCRIPT = 300


class Reader(HTMLParser):
    """Collects elements with their attributes, and holds every end against its beginning."""

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


@pytest.fixture(scope="module")
def page(visit):
    return visit.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def elements(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader.found


def test_no_place_is_left_open(page):
    assert "{{" not in page


def test_nothing_comes_from_elsewhere(page, elements):
    outside = set(re.findall(r"https?://[^\"' <)]+", page)) - {"http://www.w3.org/2000/svg"}
    assert outside == set()
    for tag, attributes in elements:
        for name in ("src", "href", "data", "action", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), tag
    assert "url(" not in page
    assert "@import" not in page


def test_ids_are_unique_and_the_script_finds_what_it_asks_for(page, elements):
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    script = files("regard.tour.page").joinpath("tour.js").read_text(encoding="utf-8")
    asked = set(re.findall(r'(?:say|\$|Plot|bars|heat)\("([\w-]+)"', script))
    assert len(asked) > 15
    assert asked <= set(ids)


def test_the_script_is_short():
    lines = files("regard.tour.page").joinpath("tour.js").read_text(encoding="utf-8").splitlines()
    assert len(lines) < LONGEST_SCRIPT
    assert max(map(len, lines)) <= 120


def test_every_station_has_all_that_is_everywhere(visit, page):
    for station in visit.stations:
        (body,) = re.findall(rf'<section id="{station.slug}".*?</section>', page, flags=re.DOTALL)
        assert body.count('class="see"') == 1
        assert len(re.findall(r"<li>[^\n]*?<details><summary>Answer</summary>", body)) == 3
        assert body.count('<details class="python">') == 1
        assert body.count('class="link"') == 1
        assert re.findall(r'data-csv="([\w-]+)"', body) == [table.name for table in station.tables]
        assert "<math" in body
        assert station.beats


def test_pictures_have_names(elements):
    for tag, attributes in elements:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"]) > 5


def test_beats_name_controls_and_values_that_exist(visit, elements):
    names = {attributes["name"] for tag, attributes in elements if tag in ("input", "select")}
    for station in visit.stations:
        for beat in filter(None, station.beats):
            assert {word.partition("=")[0] for word in beat.split("&")} <= names


def test_a_place_without_a_number_is_refused():
    with refuses("page", "missing", "nothing", "station"):
        fill("<p>{{missing}}</p>", Station("x", "X"))
    with refuses("page", "math"):
        fill("{{math:eq99}}", Station("x", "X"))


def test_facts_are_escaped_and_charts_are_drawn():
    station = Station("x", "X", {"a": "<b>&"}, charts={"c": Bars([Bar("n", 1, 0, 0, "t")], 1)})
    assert fill("{{a}}", station) == "&lt;b&gt;&amp;"
    assert 'aria-label="What it shows"' in fill("{{chart:c What it shows}}", station)


def test_titles_and_table_names_are_escaped(stations):
    odd = replace(stations["errata"], title="<i>", tables=(Table('a"b', ("x",), []),))
    made = section(odd, 10)
    assert "<i>" not in made
    assert 'data-csv="a&quot;b"' in made


def test_data_cannot_end_the_element_they_stand_in():
    station = Station("x", "X", data={"text": "</script><b>"}, tables=(Table("t", ("h",), [("<",)]),))
    written = as_json([station])
    assert "<" not in written
    assert json.loads(written) == {"x": {"text": "</script><b>", "tables": {"t": [["h"], ["<"]]}}}
