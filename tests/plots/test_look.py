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
