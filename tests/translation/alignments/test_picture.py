"""`draw`: the picture holds the weights under their words, in any script."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard.plots.fonts import MissingFontWarning
from regard.translation.alignments import Alignment, draw, picture

WEIGHTS = torch.tensor([[0.5, 0.25], [0.0, 1.0], [0.75, 0.25]])


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_source_across_target_down_and_the_rest_beside():
    axes = picture(Alignment(("the", "house"), ("das", "Haus", "!"), WEIGHTS)).axes[0]
    assert labels(axes.xaxis) == ["the", "house", "∅"]
    assert labels(axes.yaxis) == ["das", "Haus", "!"]
    shown = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shown, [[0.5, 0.25, 0.25], [0, 1, 0], [0.75, 0.25, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")


def test_words_stand_upright_and_blanks_are_seen():
    axes = picture(Alignment(("a" * 100, " "), ("x",), WEIGHTS[:1])).axes[0]
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    long, blank, _ = (label.strip() for label in labels(axes.xaxis))
    assert len(long) < 30
    assert long.endswith("…")
    assert blank == "␣"


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_any_script_is_drawn_and_what_no_font_writes_is_told(tmp_path, ending):
    words = ("日曜日", "วันที่", "שלום", "مرحبا", "$5", "한국", "_^{", chr(0xE0FFF))
    with pytest.warns(MissingFontWarning, match="No installed font"):
        path = draw(Alignment(words, words, torch.eye(8)), tmp_path / f"picture.{ending}")
    assert path.stat().st_size > 1000
    if ending == "svg":
        text = path.read_text(encoding="utf-8")
        assert all(word in text for word in ("日曜日", "วันที่", "שלום", "$5", "한국"))


def test_the_same_alignment_is_the_same_file(tmp_path):
    made = [draw(Alignment(("a", "b"), ("x", "y", "z"), WEIGHTS), tmp_path / f"{name}.svg") for name in "ab"]
    assert made[0].read_bytes() == made[1].read_bytes()


# Where no font writes Japanese, boxes are drawn, and are not cut off either.
@pytest.mark.filterwarnings("ignore::regard.plots.fonts.MissingFontWarning")
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (2, 30), (30, 1), (3, 150)])
@pytest.mark.parametrize("word", ["i", "W" * 24, "日本語"])
def test_nothing_is_cut_off(rows, columns, word):
    figure = picture(Alignment((word,) * columns, (word,) * rows, torch.full((rows, columns), 1 / columns)))
    figure.draw_without_rendering()
    drawn, page = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, page[0] - drawn.x1, page[1] - drawn.y1) > -0.01
    assert page.max() < 24


def test_an_empty_sentence_or_an_unknown_format_is_refused(tmp_path):
    with refuses("alignment", "0 target words", "and 1"):
        picture(Alignment(("a",), (), torch.zeros(0, 1)))
    with refuses("out", "ends", "file", "name"):
        draw(Alignment(("a",), ("b",), torch.ones(1, 1)), tmp_path / "picture.jpeg")
