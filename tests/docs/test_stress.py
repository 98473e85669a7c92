"""The page on promises under stress: its figures are those of the kept report, and the report keeps the promises."""

import json

import pytest
from benchmarks import pages
from tests.stress.page import PAGE, REPORT, render

LEAST = {
    "properties": {"examples": 100_000},
    "kills": {"kills": 300},
    "readers": {"contents": 10_000},
    "studio": {"at once": 1_000, "hostile": 1_000},
    "memory": {"calls of attend": 10_000, "requests": 1_000},
}


@pytest.fixture(scope="module")
def report():
    return json.loads(REPORT.read_text(encoding="utf-8"))


def test_the_page_shows_the_report(report):
    assert pages.part(PAGE.read_text(encoding="utf-8"), "stress") == render(report)


def test_nothing_was_lost_and_every_count_was_reached(report):
    assert report["whole"]
    assert report["losses"] == 0
    for name, counts in LEAST.items():
        done = report["stresses"][name]["counts"]
        assert all(done[what] >= least for what, least in counts.items()), name
    assert {"full disk", "threads and processes", "two trainings"} <= set(report["stresses"])


def test_a_loss_is_seen(report):
    lossy = json.loads(json.dumps(report))
    lossy["stresses"]["kills"] = {"promised": {"kills": 300}, "counts": {"kills": 7}, "lost": ["a bit"], "seconds": 1.0}
    told = render(lossy)
    assert "| 300 kills | 7 kills | 1 | 1 |" in told
