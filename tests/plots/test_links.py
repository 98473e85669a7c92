"""`links`: a line for each weight that counts, from its query to its key."""

import itertools

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard import plots
from regard.plots.look import COLOURS

pytestmark = pytest.mark.usefixtures("close_figures")
QUERIES, KEYS = ["il", "dort"], ["he", "is", "asleep"]


def segments(axes, head=0):
    return [tuple(map(tuple, line)) for line in axes.collections[head].get_segments()]


def test_lines_run_from_query_to_key_and_the_heaviest_is_on_top():
    axes = plots.links([[0.9, 0.1, 0.0], [0.0, 0.02, 0.98]], QUERIES, KEYS)
    left, right = (0.25, 0.75), (1 / 6, 0.5, 5 / 6)
    expected = [((0, left[0]), (1, right[1])), ((0, left[0]), (1, right[0])), ((0, left[1]), (1, right[2]))]
    np.testing.assert_allclose(segments(axes), expected)
    widths = axes.collections[0].get_linewidths()
    assert list(widths) == sorted(widths)
    assert axes.get_xlabel() == "1% of the weight is in lines below 0.05, not drawn"


def test_tokens_stand_on_both_sides_from_the_top():
    axes = plots.links(torch.eye(2, 3), QUERIES, KEYS)
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_yticklabels()] == QUERIES
    (other,) = axes.child_axes
    assert [label.get_text() for label in other.get_yticklabels()] == KEYS
    assert axes.get_ylim() == (1.0, 0.0)
    assert axes.get_legend() is None


def test_heads_have_colours_and_a_legend():
    axes = plots.links(torch.rand(4, 2, 3), QUERIES, KEYS, heads=[1, 3], threshold=0.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["head 1", "head 3"]
    assert [line.get_color() for line in axes.lines] == list(COLOURS[:2])
    assert len(segments(axes, 1)) == 6


def test_a_long_sentence_makes_a_long_figure():
    words = [f"word{i}" for i in range(120)]
    axes = plots.links(torch.eye(120), words, words)
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize("chosen", [None, [], [8], [0, 1, 2, 3, 4, 5, 6]])
def test_more_heads_than_colours_are_refused(chosen):
    with refuses("heads", "needed 1", "to 6", "from 0"):
        plots.links(torch.rand(8, 2, 3), QUERIES, KEYS, heads=chosen)


def test_weight_that_is_not_drawn_is_counted_beside_what_is_not_a_number():
    weights = torch.full((2, 4, 4), 0.25)
    weights[1, 2] = torch.nan
    axes = plots.links(weights, "abcd", "abcd", threshold=0.3)
    assert axes.get_xlabel().startswith("100% of the weight")


def test_one_head_by_its_number():
    weights = torch.rand(3, 4, 4).softmax(-1)
    for heads in (1, np.int64(1), np.array([1])):
        plots.links(weights, "abcd", "abcd", heads=heads)
    with refuses("heads", "[1.5]"):
        plots.links(weights, "abcd", "abcd", heads=1.5)
    with refuses("heads", "True"):
        plots.links(weights, "abcd", "abcd", heads=[True])


@pytest.mark.parametrize("threshold", [float("nan"), -0.1, 2, None, "a", True])
def test_a_threshold_is_a_weight(threshold):
    with refuses("threshold"):
        plots.links(np.ones((1, 1)), queries=["a"], keys=["b"], threshold=threshold)
