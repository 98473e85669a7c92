"""`tour.run`: one call prints, draws and writes."""

import pytest

from regard import tour
from regard.errors import RegardError


def test_leaves_figure_and_numbers_behind(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    visit = tour.run(out)
    assert {file.name for file in visit.files} == {path.name for path in out.iterdir()}
    assert {file.name for file in visit.files} == {
        "tour.svg",
        "tour.png",
        "samples.csv",
        "fits.csv",
        "weights.csv",
    }
    printed = capsys.readouterr().out
    assert "heaviest keys" in printed
    assert all(f"wrote {file}" in printed for file in visit.files)


def test_refuses_a_file_where_the_folder_should_be(tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(RegardError, match=r"^out: got .*taken \(File exists\); needed a folder"):
        tour.run(taken)
