"""`regard regress`: the verb hands over what it was given, and says in one line what it lacks."""

import json
import subprocess
import sys

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
        (["--demo", "--x", "a"], "x: got --x and --demo; needed --demo with --draws and --out alone."),
        (["--demo", "--kernel", "foo"], "kernel: got --kernel and --demo;"),
        (["--demo", "--level", "0.5"], "level: got --level and --demo;"),
        (["--demo", "--drop-missing"], "drop-missing: got --drop-missing and --demo;"),
        (["data.csv", "--y", "accel"], "regress: got no --x;"),
        (["data.csv", "--x", "times"], "regress: got no --y;"),
        (["data.csv", "--demo"], "demo: got --demo and the file data.csv; needed one of them."),
        (["data.csv", "--x", "times", "--y", "accel", "--draws", "3"], "draws: got 3 without --demo;"),
        (["none.csv", "--x", "times", "--y", "accel"], "file: got none.csv (No such file or directory)"),
        (["data.csv", "--x", "times", "--y", "accel", "--degree", "one"], "--degree"),
        (
            ["none.csv", "--x", "times", "--y", "accel", "--out", "no/fit.svg"],
            "out: got no/fit.svg (there is no folder no)",
        ),
        (["none.csv", "--x", "times", "--y", "accel", "--predictions", "no/p.csv"], "predictions: got no/p.csv"),
        (["--demo", "--json"], "json: got --json and --demo; needed one of them."),
    ],
)
def test_what_is_lacking_is_one_line(arguments, said, capsys):
    assert run(["regress", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(("bandwidth", "found"), [("2", 2.0), ("loo", float), ("nearest:7", {"nearest": 7})])
def test_json_is_all_there_is_on_standard_output(file, capsys, bandwidth, found):
    given = ["--x", "times", "--y", "accel", "--bandwidth", bandwidth, "--json"]
    assert run(["regress", str(file), *given]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["bandwidth"] == found if found is not float else isinstance(told["bandwidth"], float)
    assert (told["rows"], told["x"], told["y"]) == (30, ["times"], "accel")
    assert (told["criterion"] is None) == (bandwidth != "loo")
    assert "accel on times" in printed.err


def test_json_has_a_width_for_each_column_and_no_nan(file, capsys, tmp_path):
    flat = tmp_path / "flat.csv"
    flat.write_text("x,z,y\n" + "\n".join(f"{i},{i * i % 5},3" for i in range(12)), encoding="utf-8")
    assert run(["regress", str(flat), "--x", "x", "--x", "z", "--y", "y", "--bandwidth", "2,3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["bandwidth"] == [2.0, 3.0]
    assert told["left_out_r2"] is None


def test_two_results_do_not_share_a_file(file, tmp_path, capsys):
    given = ["--x", "times", "--y", "accel", "--out", str(tmp_path / "a.svg"), "--predictions", str(tmp_path / "a.svg")]
    assert run(["regress", str(file), *given]) != 0
    assert "where out is written too" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_json_of_numbers_beyond_all_numbers(capsys, tmp_path):
    large = tmp_path / "large.csv"
    large.write_text("x,y\n" + "\n".join(f"{i},{(i % 3 - 1) * 1e200}" for i in range(12)), encoding="utf-8")
    assert run(["regress", str(large), "--x", "x", "--y", "y", "--bandwidth", "0.3", "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_names_of_columns_are_no_formulas(capsys, tmp_path):
    priced = tmp_path / "priced.csv"
    priced.write_text("cost $^$,A ($) to B ($)\n" + "\n".join(f"{i},{i * i}" for i in range(12)), encoding="utf-8")
    given = ["--x", "cost $^$", "--y", "A ($) to B ($)", "--bandwidth", "2", "--out", str(tmp_path / "priced.svg")]
    assert run(["regress", str(priced), *given]) == 0
    drawn = (tmp_path / "priced.svg").read_text(encoding="utf-8")
    assert "cost $^$" in drawn
    assert "A ($) to B ($)" in drawn


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--grid", "999999999999"], "grid: got 999,999,999,999 places along each of 1 columns;"),
        (["--grid", "9" * 400], "grid: got a number of 400 digits places along each of 1 columns;"),
        (["--x", "other", "--grid", "4000"], "grid: got 4,000 places along each of 2 columns;"),
        (["--bandwidth", "0.001"], "bandwidth: got a curve that passes through all observations;"),
        (["--bandwidth", "nearest:" + "9" * 400], "bandwidth: got 'nearest:999"),
        (["--bandwidth", "9" * 400], "bandwidth: got '999"),
        (["--bandwidth", "1_000"], "bandwidth: got '1_000';"),
    ],
)
@pytest.mark.parametrize("target", ["predictions", "out"])
def test_what_cannot_be_is_refused_before_anything_is_printed(file, tmp_path, capsys, given, said, target):
    path = tmp_path / ("p.csv" if target == "predictions" else "fit.svg")
    if "--grid" in given:
        given = [*given, "--predictions", str(tmp_path / "grid.csv")]
    arguments = ["regress", str(file), "--x", "times", "--y", "accel", f"--{target}", str(path), *given]
    assert run(arguments[: -2 if target == "predictions" and "--grid" in given else None]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"regard: {said}")
    assert len(printed.err) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_a_refusal_is_not_printed_to_standard_output_where_standard_error_is_closed(tmp_path):
    command = f"{sys.executable} -m regard regress none.csv --x a --y b 2>&-"
    ended = subprocess.run(command, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (2, b"")
