"""`regard tour`: the verb hands its folder to the tour, and shows how far it is."""

import io
import sys
from pathlib import Path

import pytest

from regard import tour
from regard.cli.app import run
from regard.tour.events import Progressed


@pytest.fixture
def walked(monkeypatch):
    """A walk that takes no time; what it was asked for."""
    asked = []

    def walk(out, budget, listen):
        asked.append((out, budget))
        listen(Progressed(0.43, 2, 6, "dates: update 120 of 594"))
        return tour.Visit(out / "tour.html", (out / "tour.html", out / "samples.csv"), (), 93.4)

    monkeypatch.setattr(tour, "run", walk)
    return asked


def test_writes_into_the_folder_it_is_given_and_says_where(walked, capsys):
    assert run(["tour", "--out", "some/where"]) == 0
    assert walked == [(Path("some/where"), tour.FULL)]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"wrote {Path('some/where/tour.html')} and 1 files beside it in 93 s"
    assert printed[1] == f"open {Path('some/where/tour.html').resolve().as_uri()}"
    assert len(printed) == 2, "nothing else where the output is no terminal"


def test_quick(walked):
    assert run(["tour", "--quick"]) == 0
    assert walked == [(Path("tour"), tour.QUICK)]


def test_a_terminal_sees_a_bar_with_its_numbers(walked, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["tour"]) == 0
    shown = sys.stdout.getvalue()
    for words in ("2 of 6 works", "43%", "dates: update 120 of 594"):
        assert words in shown
