"""The look of figures: files, text that stays text, and the sentence said without matplotlib."""

import sys

import pytest

from regard import plots
from regard.errors import RegardError


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


def test_the_users_own_style_is_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure()
    assert dict(matplotlib.rcParams) == before


def test_panels_stand_side_by_side():
    drawn, axes = plots.canvas(6, 2, panels=3)
    assert drawn.axes == axes
    assert len(axes) == 3


@pytest.mark.parametrize("draw", [lambda: plots.heatmap([[1.0]]), lambda: plots.curves([0.0], {}), figure])
def test_without_matplotlib_the_extra_is_named(monkeypatch, draw):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RegardError) as refusal:
        draw()
    assert str(refusal.value) == (
        "plots: got no module named matplotlib; needed matplotlib, which draws every figure. "
        'Install it with pip install "regard[plots]".'
    )


def test_panels_row_by_row_on_the_same_scales():
    _, panels = plots.canvas(4, 3, panels=3, rows=2, same_scales=True)
    assert len(panels) == 6
    panels[4].set_xlim(0, 7)
    panels[4].set_ylim(2, 3)
    assert all(panel.get_xlim() == (0, 7) and panel.get_ylim() == (2, 3) for panel in panels)
    columns = [panel.get_subplotspec().colspan.start for panel in panels]
    assert columns == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_ending_chooses_the_format(tmp_path, name, start):
    path = plots.save_as(figure(), tmp_path / name)
    assert path == tmp_path / name
    assert path.read_bytes().startswith(start)


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(RegardError, match=r"^out: got 'a.docx'; needed a file name that ends in .svg, .png or .pdf"):
        plots.save_as(figure(), tmp_path / "a.docx")


def test_makes_a_folder_or_says_why_not(tmp_path):
    plots.make_folder(tmp_path / "new" / "folder")
    plots.make_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "taken").touch()
    with pytest.raises(RegardError, match=r"^out: got .*taken \(File exists\); needed a folder"):
        plots.make_folder(tmp_path / "taken")
