"""`run`: verbs, versions, and everything that goes wrong as one line with its status."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest

from regard.cli.app import run
from regard.errors import RegardError


def test_help_lists_every_verb(capsys):
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    verbs = ("tour", "regress", "train", "translate", "evaluate", "lab", "studio", "doctor", "bench")
    assert all(f"│ {verb} " in printed for verb in verbs)


def test_version_is_that_of_the_installed_package(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("regard")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["translate"], "regard translate --help shows what it takes."),
        (["tor"], 'Did you mean "tour"?'),
        (["doctor", "--speed"], "--speed"),
        (["tour", "--out"], "--out"),
    ],
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


def broken(monkeypatch, error):
    """A verb that ends in an error."""
    from regard.cli import app as module

    def fail(*given, **options):
        raise error

    monkeypatch.setattr(module, "app", fail)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RegardError("x", got="1", needed="2", repair="Pass 2."), 2, "regard: x: got 1; needed 2. Pass 2.\n"),
        (KeyError("width"), 1, "regard: KeyError: 'width' (the same command with --debug shows where).\n"),
        (MemoryError(), 1, "regard: MemoryError: no further word (the same command with --debug shows where).\n"),
        (
            RuntimeError("two\nlines"),
            1,
            "regard: RuntimeError: two lines (the same command with --debug shows where).\n",
        ),
    ],
)
def test_whatever_goes_wrong_is_one_line_and_with_debug_it_is_all_told(monkeypatch, capsys, error, status, said):
    broken(monkeypatch, error)
    assert run(["doctor"]) == status
    assert capsys.readouterr().err == said
    with pytest.raises(type(error)):
        run(["doctor", "--debug"])


def test_debug_after_two_dashes_is_text_like_any_other(monkeypatch):
    from regard.cli import app as module

    asked = []
    monkeypatch.setattr(module, "app", lambda words, **options: asked.append(words))
    run(["translate", "--debug", "model", "--", "--debug", "x"])
    run(["translate", "model"])
    assert asked == [["translate", "model", "--", "--debug", "x"], ["translate", "model"]]


def test_ctrl_c_inside_a_verb_is_said(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.doctor.machine", interrupted)
    assert run(["doctor"]) == 130
    assert capsys.readouterr().err == "\nregard: interrupted.\n"


def test_ctrl_c_and_a_reader_that_has_gone(monkeypatch, capsys):
    broken(monkeypatch, KeyboardInterrupt())
    assert run(["doctor"]) == 130
    assert capsys.readouterr().err == "\nregard: interrupted.\n"
    stdout = sys.stdout
    broken(monkeypatch, BrokenPipeError())
    assert run(["doctor"]) == 0
    sys.stdout = stdout
    assert capsys.readouterr().err == ""


def piped(shell: str, **environment: str) -> subprocess.CompletedProcess:
    command = shell.format(regard=f"{shlex.quote(sys.executable)} -m regard")
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_a_reader_that_leaves_early_is_no_failure():
    """Help is written by a library that leaves with status 1 where its reader has gone."""
    done = piped("set -o pipefail; {regard} --help | true")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("place", [">&-", "> /dev/full"])
@pytest.mark.parametrize("words", ["doctor", "doctor --json", "--version"])
def test_an_output_that_cannot_be_written_is_refused(words, place):
    done = piped(f"{{regard}} {words} {place}")
    assert done.returncode == 2
    assert done.stderr.startswith("regard: output: got standard output (")
    assert done.stderr.count("\n") == 1


def test_what_a_terminal_cannot_write_does_not_end_what_is_done(tmp_path):
    table = tmp_path / "data.csv"
    table.write_text("x,y\n" + "\n".join(f"{i},{i * i % 7}" for i in range(30)), encoding="utf-8")
    ascii_only = {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = piped(f"{{regard}} regress {table} --x x --y y", **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xb2" in done.stdout
