"""`regard lab`: the verb hands over what it was given, and says in one line what it lacks."""

from pathlib import Path

import pytest

from regard.cli.app import run
from regard.experiments import run as experiments


def test_hands_over_every_flag(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(experiments, "run", lambda out, corpus, **options: asked.append((out, corpus, options)))
    assert run(["lab"]) == 0
    given = ["--corpus", "dates", "--seeds", "2", "--quick", "--out", str(tmp_path), "--device", "cuda"]
    assert run(["lab", *given, "--workers", "4"]) == 0
    usual = {"seeds": None, "quick": False, "device": "cpu", "workers": None}
    assert asked[0] == (Path("lab"), "lists", usual)
    assert asked[1] == (tmp_path, "dates", {"seeds": 2, "quick": True, "device": "cuda", "workers": 4})


def test_a_refusal_is_one_line(tmp_path, capsys):
    assert run(["lab", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "regard: seeds: got 0; needed 1 or more. An interval takes at least 2.\n"


def test_the_help_names_the_verb(capsys):
    assert run(["--help"]) == 0
    assert "lab" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--workers", "0"], ["--device", "nope"]], ids=str)
def test_what_is_refused_leaves_no_folder(wrong, tmp_path, capsys):
    assert run(["lab", "--out", str(tmp_path / "lab"), *wrong]) != 0
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "lab").exists()
