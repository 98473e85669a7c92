"""`run`: verbs, versions, and mistakes as one line with status 2."""

import sys
from importlib.metadata import version

import pytest

from regard.cli.app import run


def test_help_lists_every_verb(capsys):
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(verb in printed for verb in ("tour", "regress", "doctor"))


def test_version_is_that_of_the_installed_package(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("regard")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["tor"], 'Did you mean "tour"?'), (["doctor", "--speed"], "--speed"), (["tour", "--out"], "--out")],
)
def test_a_mistyped_command_is_one_line(capsys, arguments, said):
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("regard: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_refusal_of_the_library_is_one_line(capsys, tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    assert run(["tour", "--out", str(taken)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("regard: out: got ")
    assert printed.count("\n") == 1


def test_without_matplotlib_the_tour_names_the_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["tour", "--out", str(tmp_path)]) == 2
    assert 'pip install "regard[plots]"' in capsys.readouterr().err
