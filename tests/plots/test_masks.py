"""`plots.mask`: the picture holds exactly what the mask says."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard import Mask, plots


@pytest.fixture
def axes():
    return plots.canvas(4, 3)[1][0]


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def test_ink_is_where_a_query_may_attend(axes):
    assert plots.mask(Mask.causal(), 5, 5, ax=axes) is axes
    np.testing.assert_array_equal(shown(axes), np.tril(np.ones((5, 5), dtype=bool)))


def test_one_matrix_of_a_batch(axes):
    plots.mask(Mask.lengths(torch.tensor([2, 3])), 4, 5, batch=(2,), at=(1,), ax=axes)
    np.testing.assert_array_equal(shown(axes), np.arange(5) < np.full((4, 1), 3))


def test_a_bare_boolean_is_refused():
    with refuses("mask", "Mask.keep"):
        plots.mask(torch.ones(3, 3, dtype=torch.bool), 3, 3)


def test_a_matrix_that_is_not_there_is_refused(axes):
    with refuses("at", "number", "batch", "axis"):
        plots.mask(Mask.causal(), 3, 3, batch=(2,), at=(2,), ax=axes)


def test_tokens_name_rows_and_columns_and_a_legend_says_what_ink_means(close_figures):
    words = ["the", "committee", "of", "ministers"]
    axes = plots.mask(Mask.causal(), words, words)
    assert [label.get_text().strip("\n") for label in axes.get_xticklabels()] == words
    assert [label.get_text() for label in axes.get_yticklabels()] == words
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["may attend", "may not"]
    np.testing.assert_array_equal(shown(axes), np.tril(np.ones((4, 4), dtype=bool)))


def test_a_large_mask_has_no_hair_lines(axes):
    plots.mask(Mask.causal(), 200, 200, ax=axes)
    assert len(axes.get_xticks(minor=True)) == 0


def test_sizes_of_numpy_are_sizes_and_nothing_is_no_picture():
    assert plots.mask(Mask.causal(), np.int64(4), np.int64(4)).images[0].get_array().shape == (4, 4)
    words = np.array(["a", "b", "c"])
    assert plots.mask(Mask.causal(), words, words).get_xticklabels()[1].get_text() == "b"
    with refuses("queries"):
        plots.mask(Mask.causal(), 0, 0)


def test_names_on_given_axes_stand_apart():
    from matplotlib import pyplot

    words = ["extraordinarily", "internationalised", "committee", "nevertheless", "unanimously", "agreed", "on", "rule"]
    figure, ax = pyplot.subplots(figsize=(8, 4))
    plots.mask(Mask.causal(), words, words, ax=ax)
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    levels = 1 + max(label.get_text().count("\n") for label in ax.get_xticklabels())
    assert len(boxes) > levels
    assert all(one.x1 < other.x0 for one, other in zip(boxes, boxes[levels:], strict=False))
    pyplot.close(figure)


def test_cells_are_numbered_whole():
    ax = plots.mask(Mask.causal(), 2, 2)
    assert all(tick == round(tick) for tick in ax.get_xticks())


def test_a_batch_of_one_axis_may_be_a_number():
    mask = Mask.lengths(torch.tensor([1, 3]))
    ax = plots.mask(mask, 3, 3, batch=2, at=1)
    assert ax.images[0].get_array().all()
    with refuses("at", "(0.5,)"):
        plots.mask(mask, 3, 3, batch=(2,), at=(0.5,))
