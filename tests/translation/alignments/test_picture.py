"""`draw`: the picture holds the weights under their words, in any script."""

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.plots.fonts import MissingFontWarning
from regard.translation.alignments import Alignment, draw, picture
from regard.translation.alignments.picture import LARGEST, LONGEST_LABEL

WEIGHTS = torch.tensor([[0.5, 0.25], [0.0, 1.0], [0.75, 0.25]])


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_source_across_target_down_and_the_rest_beside():
    (axes,) = picture(Alignment(("the", "house"), ("das", "Haus", "!"), WEIGHTS)).axes
    assert labels(axes.xaxis) == ["the", "house", "∅"]
    assert labels(axes.yaxis) == ["das", "Haus", "!"]
    shown = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shown, [[0.5, 0.25, 0.25], [0, 1, 0], [0.75, 0.25, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")


def test_words_are_turned_and_characters_are_not():
    for words, angle in (("the", "house"), 90), (("a", "b"), 0):
        (axes,) = picture(Alignment(words, ("x",), WEIGHTS[:1])).axes
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {angle}


def test_labels_are_kept_short_and_blanks_are_seen():
    (axes,) = picture(Alignment(("a" * 100, " "), ("x",), WEIGHTS[:1])).axes
    long, blank, _ = labels(axes.xaxis)
    assert len(long) == LONGEST_LABEL
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


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (2, 30), (30, 1), (3, 150)])
@pytest.mark.parametrize("word", ["i", "W" * LONGEST_LABEL, "日本語"])
def test_cells_are_square_nothing_is_cut_off_and_no_room_is_wasted(rows, columns, word):
    figure = picture(Alignment((word,) * columns, (word,) * rows, torch.full((rows, columns), 1 / columns)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    cells, drawn, page = axes.get_window_extent(), figure.get_tightbbox(), figure.get_size_inches()
    assert cells.width / (columns + 1) == pytest.approx(cells.height / rows)
    edges = (drawn.x0, drawn.y0, page[0] - drawn.x1, page[1] - drawn.y1)
    assert min(edges) > 0
    assert max(edges) < 0.25
    assert page.max() < LARGEST + 4


def test_an_empty_sentence_or_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(RegardError, match="alignment: got 0 target words and 1 source words; needed at least one"):
        picture(Alignment(("a",), (), torch.zeros(0, 1)))
    with pytest.raises(RegardError, match=r"needed a file name that ends in \.svg, \.png or \.pdf"):
        draw(Alignment(("a",), ("b",), torch.ones(1, 1)), tmp_path / "picture.jpeg")
