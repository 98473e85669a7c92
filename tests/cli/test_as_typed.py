"""What would be rounded or filled in is refused, whatever the verb and however its flags are declared."""

from pathlib import Path

import pytest

from regard.cli.app import app, run

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
