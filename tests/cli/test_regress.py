"""`regard regress`: the verb hands over what it was given, and says in one line what it lacks."""

import pytest

from regard.cli.app import run
from regard.regression import experiment


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.csv"
    rows = "\n".join(f"{i / 4};{(i % 5) / 2};{(i * i) % 7}" for i in range(30))
    path.write_text(f"times;other;accel\n{rows}\n", encoding="utf-8")
    return path


def test_a_file_with_every_option(file, tmp_path, capsys):
    given = ["--x", "times", "--x", "other", "--y", "accel", "--kernel", "tricube", "--bandwidth", "2,3"]
    more = ["--degree", "1", "--level", "0.8", "--variance", "global", "--empty", "mean", "--grid", "3"]
    written = ["--out", str(tmp_path / "fit.png"), "--predictions", str(tmp_path / "p.csv")]
    assert run(["regress", str(file), *given, *more, *written]) == 0
    printed = capsys.readouterr().out
    assert "accel on times, other, local lines" in printed
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()) == 10


def test_the_demo_is_the_experiment(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(experiment, "run", lambda out, draws: asked.append((out, draws)))
    assert run(["regress", "--demo", "--out", str(tmp_path), "--draws", "7"]) == 0
    assert run(["regress", "--demo"]) == 0
    assert asked[0] == (tmp_path, 7)
    assert (str(asked[1][0]), asked[1][1]) == ("regress-demo", 200)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "regress: got no file; needed a CSV file, --x and --y, or --demo."),
        (["data.csv", "--y", "accel"], "regress: got no --x;"),
        (["data.csv", "--x", "times"], "regress: got no --y;"),
        (["data.csv", "--demo"], "demo: got --demo and the file data.csv; needed one of them."),
        (["data.csv", "--x", "times", "--y", "accel", "--draws", "3"], "draws: got 3 without --demo;"),
        (["none.csv", "--x", "times", "--y", "accel"], "file: got none.csv (No such file or directory)"),
        (["data.csv", "--x", "times", "--y", "accel", "--degree", "one"], "--degree"),
    ],
)
def test_what_is_lacking_is_one_line(arguments, said, capsys):
    assert run(["regress", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
