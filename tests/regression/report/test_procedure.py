"""A file in one call: table, figure and predictions; and nothing written where something is wrong."""

from dataclasses import replace

import pytest
from tests.refuses import refuses

from regard.regression.csv_report import RegressOptions, run


def test_leaves_figure_and_predictions_behind(noisy, tmp_path, capsys):
    out, predicted = tmp_path / "fit.svg", tmp_path / "p.csv"
    run(RegressOptions(noisy, ("x",), "y", kernel="boxcar", bandwidth="0.01", grid=7, out=out, predictions=predicted,
               variance="global"))  # fmt: skip
    printed = capsys.readouterr().out
    assert "leave-one-out error" in printed
    assert "note: " in printed
    assert f"wrote {out}" in printed
    assert f"wrote {predicted}, 7 rows" in printed
    assert "not of the true curve</text>" in out.read_text(encoding="utf-8")


def test_three_columns_have_no_figure_and_it_says_so(noisy, tmp_path, capsys):
    out = tmp_path / "fit.svg"
    run(RegressOptions(noisy, ("x", "other", "count"), "y", bandwidth="1", out=out))
    assert "no figure: a fit on 3 columns has no picture" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("changed", "argument", "word"),
    [
        ({"out": "fit.jpeg"}, "out", "'fit.jpeg'"),
        ({"kernel": "gausian"}, "kernel", "'gausian'"),
        ({"degree": 2}, "degree", "2"),
        ({"empty": "zero"}, "empty", "'zero'"),
        ({"predict_at": "noisy.csv", "x": ("z",)}, "x", "one of the columns 'x', 'other'"),
    ],
)
def test_nothing_is_written_or_told_where_something_is_wrong(noisy, tmp_path, capsys, changed, argument, word):
    for name in ("out", "predict_at"):
        if name in changed:
            changed = {**changed, name: tmp_path / changed[name]}
    options = replace(RegressOptions(noisy, ("x",), "y", predictions=tmp_path / "p.csv"), **changed)
    with refuses(argument, word):
        run(options)
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["noisy.csv"]


def test_files_are_written_before_anybody_may_stop_listening(noisy, tmp_path, monkeypatch):
    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", leave)
    with pytest.raises(BrokenPipeError):
        run(
            RegressOptions(
                noisy, ("x",), "y", bandwidth="1", out=tmp_path / "fit.svg", predictions=tmp_path / "fit.csv"
            )
        )
    assert (tmp_path / "fit.svg").exists()
    assert (tmp_path / "fit.csv").exists()
