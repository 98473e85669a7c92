"""How peers are timed, and which comparisons the README shows."""

import json
import time

import pytest
from benchmarks import measure, report


@pytest.fixture
def additive_results(tmp_path, monkeypatch):
    """A results folder with comparisons against both textbook forms, given the seconds of each form."""

    def write(seconds):
        rows = [
            {
                "batch": 2,
                "tokens": 512,
                "hidden": 128,
                "backward": backward,
                "tolerance": None,
                "errors": {"regard.attend": [1e-7]},
                "seconds": {form: {"median": median}, "regard.attend": {"median": 0.01}},
                "drift": 0.0,
            }
            for (form, backward), median in seconds.items()
        ]
        machine = {"processor": "CPU", "threads": 2, "torch": "2", "python": "3"}
        suite = {"suite": "additive", "device": "cpu", "machine": machine, "rows": rows}
        (tmp_path / "additive.json").write_text(json.dumps(suite))
        monkeypatch.setattr(report, "RESULTS", tmp_path)

    return write


def test_readme_compares_with_the_faster_textbook_form(additive_results):
    additive_results(
        {
            ("textbook", False): 0.3,
            ("textbook as a product", False): 0.2,
            ("textbook, torch.compile", False): 0.055,
            ("textbook as a product, torch.compile", False): 0.058,
            ("textbook, torch.compile", True): 0.34,
            ("textbook as a product, torch.compile", True): 0.32,
        }
    )
    rows = [line for line in report.short().splitlines() if "`attend`" in line]
    assert [row.split(" | ")[1:3] for row in rows] == [
        ["`textbook as a product`", "200 ms"],
        ["`textbook, torch.compile`", "55 ms"],
        ["`textbook as a product, torch.compile`", "320 ms"],
    ]


def test_ratio_says_how_many_times_faster_than_the_first_peer(monkeypatch):
    monkeypatch.setattr(measure, "PASSES", 3)
    found = measure.compare({"slow": lambda: time.sleep(0.03), "fast": lambda: time.sleep(0.01)})
    assert found["ratio"]["slow"] == pytest.approx(1.0, rel=0.3)
    assert 1.5 < found["ratio"]["fast"] < 4.5
    assert found["seconds"]["slow"]["median"] > found["seconds"]["fast"]["median"]
