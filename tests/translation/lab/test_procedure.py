"""The whole laboratory, tiny: what it prints and which files it leaves, and that it goes on where it was."""

import json
from dataclasses import replace

import pytest
from tests.refuses import refuses
from tests.translation.lab.settings import DOT, tiny

from regard import plots
from regard.plots import files
from regard.translation.lab import costs, procedure, trial
from regard.translation.lab.competitors import NONE
from regard.translation.lab.expressiveness import measure_expressiveness
from regard.translation.lab.procedure import HEADINGS
from regard.translation.lab.saturation import measure_saturation


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(files, "RASTER_DPI", 40)  # coarse pictures are written faster
    monkeypatch.setattr(procedure, "measure_saturation", lambda: measure_saturation((2, 4), draws=1))
    monkeypatch.setattr(procedure, "measure_expressiveness", lambda seeds: measure_expressiveness(1, updates=1))
    monkeypatch.setattr(
        procedure, "setting", lambda corpus, quick: replace(tiny(), competitors=(NONE, DOT), factors=(1,))
    )
    monkeypatch.setattr(costs, "BATCHES", 2)


def test_everything_once_and_then_from_what_is_kept(tmp_path, capsys, monkeypatch, briefly):
    files = procedure.run(tmp_path / "new" / "lab", seeds=1, workers=1)
    printed = capsys.readouterr().out
    assert all(heading in printed for heading in HEADINGS.values())
    assert "2 models x 1 seed = 2 trainings, 1 at a time: about " in printed
    assert "[2/2]" in printed
    assert {file.name for file in files} == {
        f"{name}.{ending}" for name in HEADINGS for ending in ("csv", "json", "svg", "png")
    }
    assert all(file.stat().st_size and f"wrote {file}" in printed for file in files)

    first = json.loads((tmp_path / "new" / "lab" / "comparison.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(trial, "train", None)  # nothing is trained again
    monkeypatch.setattr(plots, "save", lambda figure, stem: ())
    procedure.run(tmp_path / "new" / "lab", seeds=1, workers=1)
    printed = capsys.readouterr().out
    assert printed.count("kept from before") == 2
    assert json.loads((tmp_path / "new" / "lab" / "comparison.json").read_text(encoding="utf-8")) == first


def test_one_seed_or_three(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(procedure, "carry_out", lambda setting, out, home, **rest: asked.append((home, rest["seeds"])))
    procedure.run(tmp_path)
    procedure.run(tmp_path, quick=True)
    procedure.run(tmp_path, quick=True, seeds=5)
    runs = tmp_path / "runs"
    assert asked == [(runs / "lists", 3), (runs / "lists-quick", 1), (runs / "lists-quick", 5)]


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"seeds": 0}, "seeds", "1 or more"),
        ({"workers": 0}, "workers", "0"),
        ({"device": "nowhere"}, "device", "'nowhere'"),
        ({"corpus": "poems"}, "corpus", "'poems'"),
    ],
)
def test_what_is_wrong_is_refused_at_once(tmp_path, options, argument, word):
    with refuses(argument, word):
        procedure.run(tmp_path, **options)


def test_refuses_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "taken").touch()
    with refuses("out", "exists", "taken", "File"):
        procedure.run(tmp_path / "taken")
