"""The files of figures: their formats, text that stays text, folders that are made or refused."""

import pytest
from tests.refuses import refuses

from regard import plots


def figure():
    drawn, (axes,) = plots.canvas(3, 2)
    axes.set_title("attention weights")
    return drawn


def test_saves_a_vector_and_a_raster_beside_each_other(tmp_path):
    vector, raster = plots.save(figure(), tmp_path / "width 0.5")
    assert [vector.name, raster.name] == ["width 0.5.svg", "width 0.5.png"]
    assert raster.read_bytes().startswith(b"\x89PNG")


def test_text_stays_text(tmp_path):
    vector, _ = plots.save(figure(), tmp_path / "figure")
    assert ">attention weights</text>" in vector.read_text(encoding="utf-8")


def test_the_same_figure_is_the_same_file(tmp_path):
    first, _ = plots.save(figure(), tmp_path / "first")
    second, _ = plots.save(figure(), tmp_path / "second")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_ending_chooses_the_format(tmp_path, name, start):
    path = plots.save_as(figure(), tmp_path / name)
    assert path == tmp_path / name
    assert path.read_bytes().startswith(start)


def test_an_unknown_ending_is_refused(tmp_path):
    with refuses("out", "'a.docx'"):
        plots.save_as(figure(), tmp_path / "a.docx")


def test_makes_a_folder_or_says_why_not(tmp_path):
    plots.make_folder(tmp_path / "new" / "folder")
    plots.make_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "taken").touch()
    with refuses("out", "exists", "folder", "taken"):
        plots.make_folder(tmp_path / "taken")


def test_a_dark_figure_is_saved_dark(tmp_path):
    from matplotlib.image import imread

    with plots.house_style(dark=True):
        drawn = figure()
    page = imread(plots.save_as(drawn, tmp_path / "dark.png"))
    assert page[0, 0, :3].max() < 0.2


def test_a_folder_is_made_by_its_name(tmp_path):
    plots.make_folder(str(tmp_path / "new"))
    figure, _ = plots.canvas(1, 1)
    assert all(path.is_file() for path in plots.save(figure, tmp_path / "new" / "a"))


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path):
    with refuses("out", "a.svg (No such file or directory)", "make_folder"):
        plots.save_as(figure(), tmp_path / "nowhere" / "a.svg")
    with refuses("out", "a.svg (No such file or directory)", "make_folder"):
        plots.save(figure(), tmp_path / "nowhere" / "a")


def test_who_calls_the_file_by_another_name_learns_what_the_system_said(tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(OSError, match="got ") as refused:
        plots.save_as(figure(), tmp_path / "a.svg")
    assert refused.value.strerror == "Is a directory"


@pytest.mark.parametrize("name", ["a.svg", "a.PNG", "a"])
def test_an_ending_that_is_there_is_not_said_twice(tmp_path, name):
    assert plots.save(figure(), tmp_path / name) == (tmp_path / "a.svg", tmp_path / "a.png")


def test_a_folder_is_no_figure(tmp_path):
    with refuses("stem", "folder", "file", "path"):
        plots.save(figure(), tmp_path)
