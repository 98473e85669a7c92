"""`run`: verbs, strict parsing, help with examples, and everything that goes wrong as one line with its status."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from regard.cli.app import TRAIN_EXAMPLES, app, description, run
from regard.cli.app import VERBS as REGISTERED
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
        (["trian"], 'Did you mean "train"?'),
        (["xyz"], "The commands are bench, doctor, evaluate, lab, regress, studio, tour, train, translate;"),
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


WHOLE = [
    ["regress", "data.csv", "--x", "x", "--y", "y", "--degree", "0.9"],
    ["regress", "data.csv", "--x", "x", "--y", "y", "--grid", "2.9"],
    ["train", "--out", "model", "--corpus", "dates", "--hidden", "16.7"],
    ["train", "--out", "model", "--corpus", "dates", "--attention-dim", "1.5"],
    ["translate", "model", "ab", "--beams", "1.5"],
    ["evaluate", "model", "--corpus", "dates", "--batch-size", "64.0"],
    ["lab", "--seeds", ".5"],
    ["studio", "--port", "1.5"],
]


@pytest.mark.parametrize("words", WHOLE, ids=lambda words: f"{words[0]} {words[-2]}")
def test_a_whole_number_has_no_point(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    flag = words[-2].removeprefix("--").replace("-", "_")
    said = f"regard: {flag}: got {words[-1]}; needed a whole number. Write it without a point.\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_nor_an_exponent(capsys):
    assert run(["regress", "data.csv", "--degree", "1e0"]) == 2
    assert "Invalid value for --degree" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["regress", "data.v2.csv", "--degree", "1"], "degree", 1),
        (["regress", "data.csv", "--grid", "none"], "grid", None),
        (["regress", "data.csv", "--level", "0.9"], "level", 0.9),
        (["train", "--out", "model", "--attention-dim", "none"], "flags", {"attention_dim": None}),
        (["translate", "model", "", "1.5"], "sentences", ("", "1.5")),
    ],
)
def test_everything_else_is_converted_as_before(words, name, value):
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert bound.arguments[name] == value


PATHS = [
    ["tour", "--out", ""],
    ["regress", "--demo", "--out", ""],
    ["regress", "data.csv", "--x", "x", "--y", "y", "--predictions", ""],
    ["train", "--corpus", "dates", "--out", ""],
    ["translate", "model", "ab", "--output", ""],
    ["translate", "model", "ab", "--alignment", "svg", "--alignment-out", ""],
    ["translate", "model", "ab", "--ensemble", ""],
    ["evaluate", "model", "--corpus", "dates", "--out", ""],
    ["lab", "--quick", "--out", ""],
    ["studio", "--cache", ""],
]


@pytest.mark.parametrize("words", PATHS, ids=lambda words: f"{words[0]} {words[-2]}")
def test_a_path_has_a_name(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    flag = words[-2].removeprefix("--").replace("-", "_")
    said = f"regard: {flag}: got an empty path; needed a name. Write . where you mean the current folder.\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


def test_one_without_a_flag_too(capsys):
    assert run(["translate", "", "ab"]) == 2
    assert capsys.readouterr().err.startswith("regard: model: got an empty path; needed a name.")


@pytest.mark.parametrize("flag", ["file", "--predict-at", "--out", "--predictions"])
@pytest.mark.parametrize(
    ("path", "reason"), [("loop", "Too many levels of symbolic links"), ("a" * 5000, "File name too long")]
)
def test_a_path_that_cannot_lead_to_a_file_is_refused(tmp_path, monkeypatch, capsys, flag, path, reason):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("data.csv").write_text("x,y\n1,2\n2,3\n", encoding="utf-8")
    given = [path] if flag == "file" else ["data.csv", flag, path]
    assert run(["regress", *given, "--x", "x", "--y", "y"]) == 2
    printed = capsys.readouterr().err
    assert f"({reason}); needed a path. Check the path and its links." in printed
    assert len(printed) < 300


def test_a_loop_of_links_in_a_folder_that_is_read_is_no_error(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert run(["regress", str(tmp_path), "--x", "x", "--y", "y", "--out", str(tmp_path.parent / "f.svg")]) == 2
    assert "(Is a directory)" in capsys.readouterr().err


VERBS = [name for name in app if not name.startswith("-")]
EXAMPLES = {name: examples for name, (_, examples) in REGISTERED.items()} | {"train": TRAIN_EXAMPLES}


def test_every_verb_has_examples_and_no_example_is_of_a_verb_that_is_gone():
    assert set(EXAMPLES) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_the_help_of_a_verb_ends_with_its_examples(verb, capsys):
    assert run([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    after = " ".join(printed.partition("Examples:")[2].split())
    for command, purpose in EXAMPLES[verb]:
        assert f"# {purpose} {command}" in after


@pytest.mark.parametrize("command", [command for shown in EXAMPLES.values() for command, _ in shown])
def test_an_example_is_understood(command):
    words = shlex.split(command)
    given = words[words.index("regard") + 1 :]
    function, bound, _ = app.parse_args(given, exit_on_error=False, print_error=False)
    assert function.__name__ == given[0]
    assert bound is not None


def test_a_description_is_a_line_for_each_paragraph():
    def verb():
        pass

    verb.__doc__ = "Do one thing.\n\n    More of it\n    here.\n\n    Args:\n        x: a number.\n    "
    assert description(verb) == "Do one thing.\n\nMore of it here."


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


CALL = "import sys; sys.argv = ['regard', {argument!r}]; {before}; from regard.cli import main; main()"


def test_status_is_that_of_the_command():
    assert python(CALL.format(argument="--version", before="pass")).returncode == 0
    assert python(CALL.format(argument="--nonsense", before="pass")).returncode == 2


def test_help_imports_few_modules_and_no_large_library():
    """Counted instead of timed, because a busy machine changes every time."""
    command = [sys.executable, "-X", "importtime", "-m", "regard", "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {
        line.rpartition("|")[2].strip() for line in asked.stderr.splitlines() if line.startswith("import time:")
    }
    assert "regard.cli.app" in imported
    assert not imported & {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "starlette"}
    assert len(imported) < 700


@pytest.mark.parametrize("missing", ["cyclopts", "rich"])
def test_without_the_extra_one_sentence_names_it(missing):
    asked = python(CALL.format(argument="--help", before=f"sys.modules[{missing!r}] = None"))
    assert asked.returncode == 1
    assert asked.stderr == (f'regard: the command line needs {missing}; install it with pip install "regard[cli]".\n')
