"""The site: built without a warning, and no page asks anybody outside for anything."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from tests.docs.pages import DOCS, PAGES, name_of

REQUESTS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class Requests(HTMLParser):
    """What a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "link" and given.get("rel") in ("canonical", "index", "search", "next", "prev"):
            return  # nothing is fetched for these
        if tag in REQUESTS and given.get(REQUESTS[tag]):
            self.asked.append(given[REQUESTS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without its cells' outputs, which other tests run."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", str(DOCS), str(out)]
    environment = {**os.environ, "REGARD_DOCS_EXECUTION": "off", "OMP_NUM_THREADS": "1"}
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_there(site):
    assert [name_of(page) for page in PAGES if not (site / f"{name_of(page)}.html").is_file()] == []


def test_nothing_is_asked_of_anybody_outside(site):
    outside = []
    for page in site.rglob("*.html"):
        reader = Requests()
        reader.feed(page.read_text(encoding="utf-8"))
        assert reader.asked
        outside += [(page.name, address) for address in reader.asked if re.match(r"(https?:)?//", address)]
    for style in site.rglob("*.css"):
        fetched = re.findall(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")]+)", style.read_text(encoding="utf-8"))
        outside += [(style.name, address) for address in fetched]
    assert outside == []


def test_formulas_are_set_by_the_browser_itself(site):
    page = (site / "theory" / "pooling.html").read_text(encoding="utf-8")
    assert page.count('<math display="block"') == 3
    assert 'id="eq-3"' in page
    assert "\\frac" not in re.sub(r'alttext="[^"]*"', "", page)
    assert "mathjax" not in page.lower()


def test_the_tables_of_speed_come_from_the_result_files(site):
    from results import rendered

    page = re.sub(r"<[^>]+>", "", (site / "speed.html").read_text(encoding="utf-8"))
    for which in ("benchmarks", "translation"):
        ratios = re.findall(r"\| ([\d.]+x) \|$", rendered(which), re.MULTILINE)
        assert ratios
        assert all(ratio in page for ratio in ratios)


def test_the_reference_reads_as_it_was_written(site):
    page = re.sub(r"<[^>]+>", "", (site / "api" / "regard.html").read_text(encoding="utf-8"))
    assert "(*batch, queries, query_dim)" in page
    assert "query" in page
    scores = re.sub(r"<[^>]+>", "", (site / "api" / "scores.html").read_text(encoding="utf-8"))
    assert "-|q - k|^2" in scores
